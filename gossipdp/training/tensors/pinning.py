"""Pinned memory: what of the shared memory CUDA has registered, and two pinned buffers that stand in for the rest.

A device copies to and from pinned memory beside everything else. Nothing here knows what is copied.
"""

from __future__ import annotations

import mmap
import os
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.training.messages import log

__all__ = ["AT_ONCE", "Bounce", "Pins", "sections"]

NEAR: Final = 1 << 20
"""bytes between two ranges that are pinned together: one call costs about as much as pinning this many bytes"""
AT_ONCE: Final = 1 << 30
"""bytes pinned at one step boundary: a few tenths of a second"""

_pinned: list[tuple[int, int]] = []
"""first byte and end of each range that is registered, sorted; torch looks at a storage's first byte only"""


def sections(memory: Tensor) -> Iterator[tuple[int, int, bool]]:
    """The elements [start, stop) of flat `memory` on the CPU that lie in one pinned range, or in none, and which.

    One copy must not reach over two of them.
    """
    first, size = memory.data_ptr(), memory.element_size()
    at, end = first, first + memory.nbytes
    place = max(0, bisect_right(_pinned, first, key=lambda known: known[0]) - 1)
    while at < end:
        while place < len(_pinned) and _pinned[place][1] <= at:
            place += 1
        lower, upper = _pinned[place] if place < len(_pinned) else (end, end)
        stop = min(end, upper if lower <= at else lower)
        yield (at - first) // size, (stop - first) // size, lower <= at
        at = stop


class Pins:
    """Registers shared memory with CUDA, a part at a time. Each part is pinned as long as its vector lives."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[weakref.ref[NDArray[np.float32]], int, int]] = deque()
        """vector, first byte and length of each part that is not registered yet"""
        self._device = torch.device("cpu")
        self.refused = 0
        """bytes that CUDA has refused to pin"""

    def want(
        self, vectors: Sequence[NDArray[np.float32]], spans: Iterable[tuple[int, int]], device: torch.device
    ) -> None:
        """Register these elements of new shared memory; `step` does it.

        Args:
            vectors: in the order in which they are used.
            spans: elements [start, stop) of each.
            device: whose context is used. The current one may be another rank's, and would get a context of this
                process.
        """
        self._waiting.clear()
        self._device, self.refused, wanted = device, 0, list(spans)
        for vector in vectors:
            for address, length in page_ranges(vector.ctypes.data, wanted):
                for first in range(address, address + length, AT_ONCE):
                    part = min(AT_ONCE, address + length - first)
                    self._waiting.append((weakref.ref(vector), first, part))

    def step(self) -> bool:
        """Register up to `AT_ONCE` bytes. Returns True once there is no more to register."""
        left = AT_ONCE
        while self._waiting and self._waiting[0][2] <= left:
            vector, first, length = self._waiting.popleft()
            if (living := vector()) is None:
                continue  # the memory is gone, and its address may be another's
            left -= length
            if error := self._register(living, first, length):
                self.refused = length + sum(length for _, _, length in self._waiting)
                self._waiting.clear()
                log.warning(
                    "GD-508 CUDA cannot pin %.2f GB of shared memory (error %d): copies to and from it go through a"
                    " pinned buffer, and training waits for them",
                    self.refused / 1e9,
                    error,
                )
        return not self._waiting

    def _register(self, vector: NDArray[np.float32], first: int, length: int) -> int:
        """CUDA's error, or 0."""
        with torch.cuda.device(self._device):
            if error := int(torch.cuda.cudart().cudaHostRegister(first, length, 0)):
                with suppress(RuntimeError):
                    # CUDA remembers the error, and torch would raise it at the next kernel.
                    torch.zeros(1, device=self._device)
                return error
        insort(_pinned, known := (first, first + length))
        weakref.finalize(vector, _unpin, known, self._device, os.getpid())
        return 0


def _unpin(known: tuple[int, int], device: torch.device, process: int) -> None:
    _pinned.remove(known)
    # A forked child has neither the memory nor CUDA.
    if os.getpid() == process:
        with torch.cuda.device(device):
            torch.cuda.cudart().cudaHostUnregister(known[0])


def page_ranges(address: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """First byte and length of the pages that hold these elements of a vector at `address`; no page twice."""
    page, found = mmap.PAGESIZE, list[tuple[int, int]]()
    for start, stop in sorted(spans):
        if start == stop:
            continue
        first = (address + 4 * start) // page * page
        last = -(-(address + 4 * stop) // page) * page
        if found and first <= found[-1][1] + NEAR:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return [(first, last - first) for first, last in found]


class Event(Protocol):
    """A point in a stream's work."""

    def synchronize(self) -> None:
        """Wait in this process until the device has reached it."""


class Bounce:
    """Two pinned buffers between devices and memory that is not pinned. This process waits until one is free.

    Args:
        buffers: fp32, flat, pinned, of one length; used for other dtypes, too.
        mark: returns an event behind what the current stream of a device has begun.
    """

    def __init__(self, buffers: tuple[Tensor, Tensor], mark: Callable[[torch.device], Event]) -> None:
        self._buffers, self._mark = buffers, mark
        self._busy: list[tuple[Event, Tensor | None, int] | None] = [None, None]
        """by buffer: the event behind its copy, and the target and number of elements to copy after it"""
        self._turn = 0

    def store(self, values: Tensor, into: Tensor) -> None:
        """into := values, which are on a device. It is so after `finish`."""
        self._next().view(into.dtype)[: len(values)].copy_(values, non_blocking=True)
        self._busy[self._turn] = (self._mark(values.device), into, len(values))

    @contextmanager
    def holding(self, values: Tensor, device: torch.device) -> Iterator[Tensor]:
        """A context with `values` in pinned memory, in which a copy of them to `device` begins."""
        buffer = self._next().view(values.dtype)[: len(values)]
        buffer.copy_(values)
        turn = self._turn
        try:
            yield buffer
        finally:
            self._busy[turn] = (self._mark(device), None, 0)

    def finish(self) -> None:
        """Wait until everything that `store` was given is where it belongs."""
        for turn in (1 - self._turn, self._turn):
            self._free(turn)

    def _next(self) -> Tensor:
        self._turn = 1 - self._turn
        self._free(self._turn)
        return self._buffers[self._turn]

    def _free(self, turn: int) -> None:
        busy, self._busy[turn] = self._busy[turn], None
        if busy is not None:
            event, into, count = busy
            event.synchronize()
            if into is not None:
                into.copy_(self._buffers[turn].view(into.dtype)[:count])
