"""The log file of one process in its peer's home, bounded and rotated. A full disk stops no process."""

from __future__ import annotations

import contextlib
import logging
import os
from itertools import pairwise
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "LogFile", "log_file"]

FOLDER: Final = "log"
"""folder of the home"""
MOST_BYTES: Final = 10 << 20
"""bytes of one file"""
FILES: Final = 5
"""files kept, the one being written included"""


def log_file(home: Path, process: str) -> Path:
    """The log file of the process "peer" or "supervisor". Each has a file of its own, which it alone rotates."""
    return home / FOLDER / f"{process}.log"


class LogFile(logging.Handler):
    """Appends each line at once. Rotates ``NAME.log`` to ``NAME.log.1`` and so on.

    Args:
        fallback: gets one line about each new reason why the file cannot be written.
    """

    def __init__(
        self, path: Path, fallback: logging.Handler, *, most_bytes: int = MOST_BYTES, files: int = FILES
    ) -> None:
        super().__init__()
        self._path, self._fallback, self._most_bytes, self._files = path, fallback, most_bytes, files
        self._descriptor: int | None = None
        self._size = 0
        self._trouble = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = (self.format(record) + "\n").encode("utf-8", "replace")
        try:
            self._write(line)
        except OSError as error:
            self._shut()
            self._tell(f"{error.strerror or error}")
        else:
            self._trouble = ""

    def close(self) -> None:
        self._shut()
        super().close()

    def _write(self, line: bytes) -> None:
        if self._descriptor is not None and self._size + len(line) > self._most_bytes:
            self._rotate()
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        while line:
            written = os.write(self._descriptor, line)
            self._size += written
            line = line[written:]

    def _open(self) -> None:
        """Open the file. The home itself is not made here."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path.parent, 0o700)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self._shut()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{number}") for number in range(1, self._files))]
        for newer, older in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)

    def _shut(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            text = f"the log file {self._path} cannot be written, so lines are missing there: {trouble}"
            self._fallback.handle(
                logging.makeLogRecord({"msg": text, "levelno": logging.WARNING, "levelname": "WARNING"})
            )
