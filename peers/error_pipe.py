"""Passes on the standard error of a process, and keeps its last lines. Nothing here may wait."""

from __future__ import annotations

import contextlib
import os
from typing import Final

__all__ = ["ErrorPipe"]

LINES: Final = 8
WIDTH: Final = 160
"""Characters of a line, twice the width of a terminal."""
KEPT: Final = 8192
"""Bytes."""
READS: Final = 16
"""Reads in one call, so that a command that writes without end does not hold up the supervisor."""


class ErrorPipe:
    """A pipe from a child. The child inherits `write_end`; `take_over` then closes it in this process."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._kept = b""
        self.open = True
        """False once no process holds the other end."""

    def fileno(self) -> int:
        return self._read

    def take_over(self) -> None:
        os.close(self.write_end)

    def pass_on(self) -> None:
        """Copy what has arrived to the standard error of this process."""
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
            with contextlib.suppress(OSError):  # the terminal is gone
                while piece:
                    piece = piece[os.write(2, piece) :]

    def lines(self) -> list[str]:
        """The last lines, each cut to `WIDTH`."""
        text = self._kept.decode("utf-8", "replace").replace("\r", "\n")
        return [line[:WIDTH] for line in text.splitlines() if line.strip()][-LINES:]

    def close(self) -> None:
        """Copy the rest, and close the pipe. `lines` stay available."""
        self.pass_on()
        if self.open:
            self.open = False
            os.close(self._read)
