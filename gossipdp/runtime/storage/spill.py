"""Bytes on disk that would fill the daemon's memory: copies for joiners, moments, and what undoes a re-sync.

They are in files without a name, so a crash leaves nothing behind. They are read through mappings of these files. The
page cache holds them as long as memory is free. Nothing here may know what the bytes mean.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from gossipdp.codecs.base import Buffer
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.files import Files

__all__ = ["LEFT", "SEGMENT", "Spill"]

SEGMENT: Final = 1 << 28
"""bytes of a file. Each file that is in use takes a descriptor, so a file holds many payloads"""
LEFT: Final = 1 << 28
"""bytes of the disk that are left to its other writers"""


class Spill:
    """Keeps payloads in files of one folder. Any number of threads may call `keep` at once.

    The last view of a file's payloads frees the file. Payloads of about the same age share files.

    Args:
        folder: made if it is missing.
        files: the file system.
    """

    def __init__(self, folder: Path, *, files: Files | None = None) -> None:
        self._folder, self._files = folder, files or Files()
        self._lock = threading.Lock()
        self._segment: _Segment | None = None
        self._used = 0
        """bytes of `_segment` that are taken"""
        self._refused, self._news = False, ""
        with suppress(OSError):  # `keep` will say it
            if not folder.is_dir():
                self._files.make_directory(folder)

    def keep(self, payload: Buffer) -> Buffer:
        """The same bytes as a read-only view of a file. If the disk does not take them, `payload` itself."""
        piece = memoryview(payload).cast("B")
        try:
            segment, at = self._reserve(piece.nbytes)
            kept = segment.write(piece, at)
        except OSError as error:
            if not self._refused:
                self._news = f"copies and moments stay in memory, because {self._folder} takes no more: {error}"
            self._refused = True
            return payload
        self._refused = False
        return kept

    def free(self) -> float:
        """Bytes for which the disk has room."""
        try:
            return max(0.0, self._files.free(self._folder) - LEFT)
        except OSError:
            return 0.0

    def look(self) -> str:
        """Text of a notice (GD-602), or "". It comes once until the disk takes a payload again."""
        news, self._news = self._news, ""
        return news

    def _reserve(self, size: int) -> tuple[_Segment, int]:
        if self.free() < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with self._lock:
            if self._segment is None or self._segment.length - self._used < size:
                self._segment, self._used = _Segment(self._folder, max(SEGMENT, size)), 0
            at = self._used
            self._used += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            return self._segment, at


class _Segment:
    """A file without a name, and the mapping that keeps it. Blocks are taken where a payload is written."""

    def __init__(self, folder: Path, length: int) -> None:
        self.length = length
        with spare():
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 the segment closes it
            weakref.finalize(self, self._file.close)
            self._file.truncate(length)
            self._view = memoryview(mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ))

    def write(self, piece: memoryview, at: int) -> memoryview:
        """Write `piece` at `at`, and return it as mapped. Raises OSError, never SIGBUS, if the disk is full."""
        size, written = piece.nbytes, 0
        os.posix_fallocate(self._file.fileno(), at, size)
        while written < size:
            written += os.pwrite(self._file.fileno(), piece[written:], at + written)
        return self._view[at : at + size]
