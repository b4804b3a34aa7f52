"""The last row of a terminal, kept free of other output. Nothing here may ask a daemon or read a clock.

All other output scrolls in the rows above (DECSTBM). Several processes write it, and none of them has to know of the
row: not its unfinished lines, progress bars and colours, and not its restarts. Each drawing is one write. It saves the
cursor, draws, and restores the cursor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

__all__ = ["Row"]

SAVE, RESTORE = "\x1b7", "\x1b8"
ALL_ROWS: Final = "\x1b[r"
BELOW: Final = "\x1b[J"
"""clears all after the cursor"""
OFF_LAST: Final = "\x1bD\x1b[A"
"""scrolls if the cursor is in the last row, and keeps it at its place in the text"""
FEWEST: Final = 4
"""rows of a terminal that has room for the row"""


class Row:
    """The row at the bottom.

    Args:
        descriptor: of the terminal.
        size: tells columns and rows of the terminal; by default as the kernel knows them.
    """

    def __init__(self, descriptor: int, size: Callable[[int], os.terminal_size] = os.get_terminal_size) -> None:
        self._descriptor, self._measure = descriptor, size
        self._size: os.terminal_size | None = None
        """of the last drawing; None while the row is not shown"""

    def draw(self, text: Callable[[int], str]) -> None:
        """Show a text, which is asked for with the number of characters that fit.

        Raises:
            OSError: the terminal is gone.
        """
        size = self._measure(self._descriptor)
        if size.lines < FEWEST:
            self.clear()
            return
        made = ""
        if size != self._size:
            made = SAVE + ALL_ROWS + RESTORE + (BELOW if self._size else "") + OFF_LAST
            self._size = size
        made += f"{SAVE}\x1b[1;{size.lines - 1}r\x1b[{size.lines};1H\x1b[2K{text(size.columns - 1)}{RESTORE}"
        os.write(self._descriptor, made.encode())

    def clear(self) -> None:
        """Give the row back to other output.

        Raises:
            OSError: the terminal is gone.
        """
        if self._size is None:
            return
        if self._measure(self._descriptor) == self._size:
            made = f"{SAVE}{ALL_ROWS}\x1b[{self._size.lines};1H\x1b[2K{RESTORE}"
        else:
            made = SAVE + ALL_ROWS + RESTORE + BELOW
        self._size = None
        os.write(self._descriptor, made.encode())
