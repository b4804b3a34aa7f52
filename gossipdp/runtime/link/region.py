"""The memory that a daemon and a training process share: one anonymous file with two fp32 buffers, and a token.

Slot n of corrections is in buffer n % 2, and so is a snapshot whose last slot is n. The model to start from is in
buffer 0. The buffer that collects no corrections is free: snapshots, moments and the next open slot need it in turn.
The side that holds the token may use it (algorithms section 1b). Every page is allocated before the file is handed out,
and its size is sealed, so that touching it cannot kill either side. A mapping lives as long as the last array on it,
and only in this process: a forked child has no part of it. Nothing here may know a socket or a message.
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
Bytes = NDArray[np.uint8]

BUFFERS: Final = 2
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
    """Both sides' view of the shared buffers, each of shape ``(size,)`` and aligned to a page.

    Args:
        fd: a memory file as `Allocation` makes it; the caller may close it afterwards.
        size: parameters a buffer.
        token: an eventfd as `Allocation` makes it; the caller may close it afterwards. A rank that is not the leader
            has none.

    Raises:
        ValueError: the file is not sealed against resizing, or has another length.
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int, size: int, token: int = -1) -> None:
        length = BUFFERS * _stride(size)
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
        self._token = -1
        if token >= 0:
            with spare():
                self._token = os.dup(token)
        self._view(memory)
        leave_in_forks(self)

    def __del__(self) -> None:
        if getattr(self, "_token", -1) >= 0:
            os.close(self._token)

    def _view(self, memory: mmap.mmap) -> None:
        even, odd = (_vector(memory, self.size, place) for place in range(BUFFERS))
        self.buffers: tuple[Vector, Vector] = (even, odd)
        self.raw: tuple[Bytes, Bytes] = (_bytes(memory, self.size, 0), _bytes(memory, self.size, 1))
        """the same memory as bytes, each to the end of its last page"""

    def take(self) -> int | None:
        """Take the token, and with it the free buffer.

        Returns:
            Number of the last slot that was sealed: a snapshot must contain it, and stands in its buffer. None if the
            token is taken.
        """
        try:
            return os.eventfd_read(self._token) - 1
        except BlockingIOError:
            return None

    def give(self, sealed: int) -> None:
        """Put the token back. Only its holder may. sealed: number of the last slot that was sealed."""
        os.eventfd_write(self._token, sealed + 1)

    def leave_to_parent(self) -> None:
        """In a forked child: map private memory instead. The child would keep the shared one while it lives."""
        if self._token >= 0:
            os.close(self._token)
            self._token = -1
        self._view(mmap.mmap(-1, BUFFERS * _stride(self.size), mmap.MAP_PRIVATE))


class Allocation:
    """Allocates the file of a Region piece by piece, so that an I/O loop can go on in between.

    The training process has the token first, because it writes its model.

    Raises:
        OSError: from here, or from `step`: no memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._length, self._done = BUFFERS * _stride(size), 0
        with spare():
            self.token = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                self.fd = os.memfd_create("gossipdp region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            except OSError:
                os.close(self.token)
                raise

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
        """Close the descriptors; regions made from them stay."""
        os.close(self.fd)
        os.close(self.token)


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


def _bytes(memory: mmap.mmap, size: int, place: int) -> Bytes:
    return np.frombuffer(memory, np.uint8, _stride(size), place * _stride(size))


def _vector(memory: mmap.mmap, size: int, place: int) -> Vector:
    return np.frombuffer(memory, np.float32, size, place * _stride(size))
