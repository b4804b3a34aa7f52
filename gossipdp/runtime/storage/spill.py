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

    Payloads of about the same age share a file. `tick` frees it once nothing refers to any of them.

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
        self._full: list[mmap.mmap] = []
        """the files before it. Freeing one takes 20 ms, so their last views must not do it all at once"""
        self._refused, self._news = False, ""
        with suppress(OSError):  # `keep` will say it
            if not folder.is_dir():
                self._files.make_directory(folder)

    def keep(self, payload: Buffer) -> Buffer:
        """The same bytes as a read-only view of a file. If the disk does not take them, `payload` itself."""
        piece = memoryview(payload).cast("B")
        try:
            segment, at, kept = self._reserve(piece.nbytes)
            segment.write(piece, at)
        except OSError as error:
            if not self._refused:
                self._news = f"copies and moments stay in memory, because {self._folder} cannot take more: {error}"
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

    def tick(self) -> str:
        """Free one file that nothing refers to. To be called twice a second or so.

        Returns:
            Text of a notice (GD-602), or "". It comes once until the disk takes a payload again.
        """
        with self._lock:
            for mapping in self._full:
                with suppress(BufferError):  # it has views
                    mapping.close()
                    self._full.remove(mapping)
                    break
        news, self._news = self._news, ""
        return news

    def _reserve(self, size: int) -> tuple[_Segment, int, memoryview]:
        if self.free() < size:
            raise OSError(errno.ENOSPC, f"No space left: {LEFT >> 20} MB must stay free")
        with self._lock:
            if self._segment is None or len(self._segment.mapping) - self._used < size:
                segment = _Segment(self._folder, max(SEGMENT, size))
                self._full += [] if self._segment is None else [self._segment.mapping]
                self._segment, self._used = segment, 0
            at = self._used
            self._used += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            return self._segment, at, memoryview(self._segment.mapping)[at : at + size]


class _Segment:
    """A file without a name, and the mapping that keeps it. Blocks are taken where a payload is written."""

    def __init__(self, folder: Path, length: int) -> None:
        with spare():
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 the segment closes it
            weakref.finalize(self, self._file.close)
            self._file.truncate(length)
            self.mapping = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ)

    def write(self, piece: memoryview, at: int) -> None:
        """Write `piece` at `at`. Raises OSError if the disk is full: its blocks are there before it can be read."""
        size, written = piece.nbytes, 0
        os.posix_fallocate(self._file.fileno(), at, size)
        while written < size:
            written += os.pwrite(self._file.fileno(), piece[written:], at + written)
