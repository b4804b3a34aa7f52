"""The memory that a daemon and a training process share: one anonymous file with three fp32 vectors.

`x` carries the snapshot to the daemon and the model to the training process. The two slots carry corrections to the
training process. Every page is allocated before the file is handed out, and its size is sealed, so that touching it
cannot kill either side. A mapping lives as long as the last array on it, and only in this process: a forked child has
no part of it. Nothing here may know a socket or a message.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.link.forks import leave_in_forks

__all__ = ["Allocation", "Region", "map_sealed", "read_blob", "write_blob", "write_sealed"]

Vector = NDArray[np.float32]

_SLICE: Final = 32 << 20
"""bytes allocated at a time: about 20 ms"""
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALL_SEALS: Final = _SIZE_SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class _Shared(mmap.mmap):
    """The mapping of a region's file. It may outlive the region: arrays look into it."""

    def leave_to_parent(self) -> None:
        """In a forked child: never unmap. What the child maps later may stand at the same addresses."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class Region:
    """Both sides' view of the shared vectors, each of shape ``(size,)`` and aligned to a page.

    Args:
        fd: a memory file as `Allocation` makes it; the caller may close it afterwards.
        size: parameters a vector.

    Raises:
        ValueError: the file is not sealed against resizing, or has another length.
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int, size: int) -> None:
        length = 3 * _stride(size)
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SIZE_SEALS != _SIZE_SEALS:
            raise ValueError("the shared memory is not sealed against resizing")
        if os.fstat(fd).st_size != length:
            raise ValueError(f"the shared memory has {os.fstat(fd).st_size} bytes, not {length}")
        with spare():
            memory = _Shared(fd, length)  # keeps a copy of the descriptor
        leave_in_forks(memory)
        with suppress(OSError):
            memory.madvise(mmap.MADV_DONTFORK)
        self.size, self.bytes = size, length
        self._view(memory)
        leave_in_forks(self)

    def _view(self, memory: mmap.mmap) -> None:
        x, even, odd = (_vector(memory, self.size, place) for place in range(3))
        self.x: Vector = x
        self.slots: tuple[Vector, Vector] = (even, odd)
        """slot n is ``slots[n % 2]``"""

    def leave_to_parent(self) -> None:
        """In a forked child: map private memory instead. The child would keep the shared one while it lives."""
        self._view(mmap.mmap(-1, 3 * _stride(self.size), mmap.MAP_PRIVATE))


class Allocation:
    """Allocates the file of a Region piece by piece, so that an I/O loop can go on in between.

    Raises:
        OSError: from here, or from `step`: no memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._length, self._done = 3 * _stride(size), 0
        with spare():
            self.fd = os.memfd_create("gossipdp region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def step(self) -> bool:
        """Allocate the next piece. Returns True once all is there and sealed."""
        piece = min(_SLICE, self._length - self._done)
        os.posix_fallocate(self.fd, self._done, piece)
        self._done += piece
        if self._done < self._length:
            return False
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
        return True

    @property
    def bytes(self) -> int:
        """What is allocated so far."""
        return self._done

    def close(self) -> None:
        """Close the file; regions mapped from it stay."""
        os.close(self.fd)


def write_blob(data: bytes) -> int:
    """A new memory file that holds `data`; the caller closes it."""
    fd = os.memfd_create("gossipdp blob", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def read_blob(fd: int, limit: int) -> bytes:
    """The contents of a file received from the other side. It is read, never mapped: its sender could truncate it.

    Raises:
        ValueError: not a plain file, or longer than `limit` bytes.
        OSError: it cannot be read.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise ValueError(f"not a file of at most {limit} bytes")
    data = bytearray()
    while len(data) < status.st_size and (piece := os.pread(fd, status.st_size - len(data), len(data))):
        data += piece
    return bytes(data)


def write_sealed(parts: Iterable[Buffer]) -> int:
    """A new memory file of `parts`, end to end, sealed against any change; the caller closes it."""
    with spare():
        fd = os.memfd_create("gossipdp carried", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _ALL_SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def map_sealed(fd: int, limit: int) -> Buffer:
    """The contents of a sealed file received from the other side, without a copy. The memory lives while it is used.

    Raises:
        ValueError: the file is not sealed, or is longer than `limit` bytes.
        OSError: it cannot be mapped.
    """
    length = os.fstat(fd).st_size
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _ALL_SEALS != _ALL_SEALS or length > limit:
        raise ValueError(f"not a sealed file of at most {limit} bytes")
    with spare():
        return memoryview(mmap.mmap(fd, length, prot=mmap.PROT_READ)) if length else b""


def _stride(size: int) -> int:
    """Bytes from one vector to the next."""
    return -(-4 * size // mmap.PAGESIZE) * mmap.PAGESIZE


def _vector(memory: mmap.mmap, size: int, place: int) -> Vector:
    return np.frombuffer(memory, np.float32, size, place * _stride(size))
