"""Passes on what a process writes to standard error, and keeps its last lines. Nothing here may wait."""

from __future__ import annotations

import contextlib
import os
from typing import Final

__all__ = ["Relay"]

LINES: Final = 8
WIDTH: Final = 160
"""Characters of one line."""
KEPT: Final = 8192
"""Bytes."""
READS: Final = 16
"""Reads in a row, so that a command that writes without end holds nothing else up."""


class Relay:
    """A pipe. The child gets `write_end`; `take_over` closes it here once the child has it."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._kept = b""
        self.open = True
        """False when no process holds the other end any more."""

    def fileno(self) -> int:
        return self._read

    def take_over(self) -> None:
        os.close(self.write_end)

    def pass_on(self) -> None:
        """Write what has come to this process's standard error."""
        for _ in range(READS):
            if not self.open:
                return
            try:
                piece = os.read(self._read, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.open = False
                os.close(self._read)
                return
            self._kept = (self._kept + piece)[-KEPT:]
            with contextlib.suppress(OSError):  # a terminal that is gone
                while piece:
                    piece = piece[os.write(2, piece) :]

    def lines(self) -> list[str]:
        """The last lines, each cut to a terminal's width twice over."""
        text = self._kept.decode("utf-8", "replace").replace("\r", "\n")
        return [line[:WIDTH] for line in text.splitlines() if line.strip()][-LINES:]

    def close(self) -> None:
        """Pass on what is left; only the lines stay."""
        self.pass_on()
        if self.open:
            self.open = False
            os.close(self._read)
