"""Copies beside the training on CUDA: side streams, their events, and pinned shared memory.

Without a CUDA device all of it does nothing. Nothing here knows what is copied.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["STAGED", "Fence", "SideStreams", "dense", "parts", "passed", "pin", "pinned"]

log = logging.getLogger("gossipdp.training")

Fence: TypeAlias = Callable[[], bool]
"""returns True once every copy begun before it is done; never waits"""

NEAR: Final = 1 << 20
"""bytes between two ranges that are pinned together: one call costs about as much as pinning this many bytes"""
STAGED: Final = 1 << 23
"""elements that are copied to a device at once; each device has memory for two such copies"""


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The elements in row-major order, flat, at most `STAGED` at a time, so that a copy or a norm needs no more."""
    if tensor.dim() < 2 or tensor.is_contiguous():
        yield from tensor.reshape(-1).split(STAGED)
    elif rows := STAGED // tensor[0].numel():
        yield from (block.reshape(-1) for block in tensor.split(rows))
    else:
        for row in tensor:
            yield from parts(row)


def dense(tensor: Tensor) -> Tensor:
    """All elements, flat, in the order of memory. No copy of a dense tensor; channels_last and transposed ones are."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1)


def passed() -> bool:
    """The fence of copies that are done when they return."""
    return True


class SideStreams:
    """One stream per device, beside the training's own."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copied: dict[torch.device, torch.cuda.Event] = {}
        self._stages: dict[torch.device, _Stage] = {}

    def begin(self, devices: Iterable[torch.device] = ()) -> None:
        """Copies from now on see what the training has computed so far, on these devices and all earlier ones."""
        for device in devices:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
        for device, stream in self._streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))

    def beside(self, tensor: Tensor) -> AbstractContextManager[object]:
        """A context in which `tensor` is copied beside the training. Its memory is not reused before that is done."""
        stream = self._streams.get(tensor.device)
        if stream is not None:
            tensor.record_stream(stream)
        context: AbstractContextManager[object] = torch.cuda.stream(stream)
        return context

    @contextmanager
    def fetched(self, values: Tensor, tensor: Tensor) -> Iterator[Tensor]:
        """A context with `values` on the device of `tensor`. Pinned ones are copied beside the training.

        The training's stream waits for that copy on the device; this process does not wait.

        Args:
            values: fp32, at most `STAGED` elements.
        """
        if not pinned(values, tensor) or tensor.device not in self._streams:
            yield values.to(tensor.device)
            return
        if tensor.device not in self._stages:
            self._stages[tensor.device] = _Stage(tensor.device, self._streams[tensor.device])
        with self._stages[tensor.device].holding(values) as part:
            yield part

    def end(self) -> Fence:
        """A fence behind everything begun so far, in both kinds of streams. `wait` waits for it too."""
        for device, stream in self._streams.items():
            self._copied[device] = stream.record_event()
        return _behind([*self._copied.values(), *self._mark()])

    def wait(self) -> None:
        """Let the devices, not this process, wait for all copies: what they read is about to change."""
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)
        self._copied.clear()

    def fence(self) -> Fence:
        """A fence behind everything begun so far in the training's own streams."""
        return _behind(self._mark())

    def finish(self) -> None:
        """Wait for everything begun so far, in this process."""
        for device in self._streams:
            torch.cuda.synchronize(device)

    def _mark(self) -> list[torch.cuda.Event]:
        return [torch.cuda.current_stream(device).record_event() for device in self._streams]


class _Stage:
    """Two buffers on a device: a side stream fills one while the training uses the other."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._buffers = [torch.empty(STAGED, dtype=torch.float32, device=device) for _ in range(2)]
        # Earlier work on the device may still use their memory.
        self._free = [torch.cuda.current_stream(device).record_event()] * 2
        self._turn = 0

    @contextmanager
    def holding(self, values: Tensor) -> Iterator[Tensor]:
        turn = self._turn = 1 - self._turn
        training, part = torch.cuda.current_stream(self._device), self._buffers[turn][: len(values)]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free[turn])
            part.copy_(values, non_blocking=True)
        training.wait_event(self._stream.record_event())
        try:
            yield part
        finally:
            self._free[turn] = training.record_event()


def _behind(events: list[torch.cuda.Event]) -> Fence:
    return (lambda: all(event.query() for event in events)) if events else passed


_pinned: list[tuple[int, int]] = []
"""first byte and end of each range that `pin` has registered, sorted; torch looks at a storage's first byte only"""


def pinned(memory: Tensor, tensor: Tensor) -> bool:
    """True if `memory` is pinned and `tensor` on CUDA, so that a copy between them need not wait."""
    if not tensor.is_cuda:
        return False
    first = memory.data_ptr()
    place = bisect_right(_pinned, first, key=lambda known: known[0])
    return any(first + memory.nbytes <= end for _, end in _pinned[max(0, place - 1) : place])


def pin(vector: NDArray[np.float32], spans: Iterable[tuple[int, int]], device: torch.device) -> bool:
    """Pin these elements of `vector` for as long as it lives. Returns False if CUDA refuses.

    Args:
        vector: shared memory.
        spans: elements [start, stop).
        device: whose context is used. The current one may be another rank's, and would get a context of this process.
    """
    runtime = torch.cuda.cudart()
    with torch.cuda.device(device):
        for address, length in page_ranges(vector.ctypes.data, spans):
            result = runtime.cudaHostRegister(address, length, 0)
            if int(result) != 0:
                log.info("the shared memory cannot be pinned (CUDA error %d): copies will be slower", int(result))
                with suppress(RuntimeError):
                    # CUDA remembers the error, and torch would raise it at the next kernel.
                    torch.zeros(1, device=device)
                return False
            insort(_pinned, known := (address, address + length))
            weakref.finalize(vector, _unpin, known, device, os.getpid())
    return True


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
