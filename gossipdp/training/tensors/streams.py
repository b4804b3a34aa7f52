"""Copies beside the training on CUDA: side streams and their events.

Without a CUDA device all of it does nothing. Nothing here knows what is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gossipdp.training.messages import log
from gossipdp.training.tensors.pinning import Bounce, sections

__all__ = ["STAGED", "Fence", "SideStreams", "dense", "parts", "passed"]

Fence: TypeAlias = Callable[[], bool]
"""returns True once every copy begun before it is done; never waits"""

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
        self._bounce: Bounce | None = None
        """for memory that is not pinned; made when it is first needed"""
        self._bounces = True
        """CUDA has not refused the memory for it"""

    def begin(self, devices: Iterable[torch.device] = ()) -> None:
        """Copies from now on see what the training has computed so far, on these devices and all earlier ones."""
        for device in devices:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
        for device, stream in self._streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))

    def on(self, device: torch.device) -> AbstractContextManager[object]:
        """A context whose work runs beside the training, on its own tensors."""
        context: AbstractContextManager[object] = torch.cuda.stream(self._streams.get(device))
        return context

    def beside(self, tensor: Tensor) -> AbstractContextManager[object]:
        """A context in which `tensor` is copied beside the training. Its memory is not reused before that is done."""
        stream = self._streams.get(tensor.device)
        if stream is not None:
            tensor.record_stream(stream)
        return self.on(tensor.device)

    def store(self, values: Tensor, into: Tensor) -> None:
        """into := values, beside what this process does if `into` is pinned. All of it is there behind `end`.

        Args:
            values: flat, at most `STAGED` elements, on any device.
            into: flat, on the CPU.
        """
        if not values.is_cuda:
            into.copy_(values)
            return
        for start, stop, pinned in sections(into):
            part, target = values[start:stop], into[start:stop]
            if pinned:
                target.copy_(part, non_blocking=True)
            elif (bounce := self._bouncing()) is not None:
                bounce.store(part, target)
            else:
                target.copy_(part.cpu())  # a copy of the device's own must not reach over pinned memory and other

    def send(self, values: Tensor, into: Tensor) -> None:
        """into := values, in the order of the current stream.

        Args:
            values: flat, on the CPU.
            into: flat, on any device.
        """
        if not into.is_cuda:
            into.copy_(values)
            return
        for first in range(0, len(values), STAGED):
            for start, stop, pinned in sections(values[first : first + STAGED]):
                part, target = values[first + start : first + stop], into[first + start : first + stop]
                with self._reachable(part, pinned, into.device) as source:
                    target.copy_(source, non_blocking=True)

    def _reachable(self, values: Tensor, pinned: bool, device: torch.device) -> AbstractContextManager[Tensor]:
        """A context with these values in memory that a copy to `device` may read whenever it comes to it."""
        if pinned:
            return nullcontext(values)
        bounce = self._bouncing()
        return nullcontext(values.clone()) if bounce is None else bounce.holding(values, device)

    def _bouncing(self) -> Bounce | None:
        if self._bounce is None and self._bounces:
            try:
                first, second = (torch.empty(STAGED, dtype=torch.float32, pin_memory=True) for _ in range(2))
            except RuntimeError as error:
                self._bounces = False
                log.warning("CUDA cannot pin any memory: copies are slow, and training waits for them: %s", error)
                return None
            self._bounce = Bounce((first, second), lambda device: torch.cuda.current_stream(device).record_event())
        return self._bounce

    @contextmanager
    def fetched(self, values: Tensor, tensor: Tensor) -> Iterator[Tensor]:
        """A context with `values` on the device of `tensor`. They are copied beside the training.

        The training's stream waits for that copy on the device. This process waits only where they are not pinned.

        Args:
            values: fp32, at most `STAGED` elements.
        """
        if values.is_cuda or tensor.device not in self._streams:
            yield values.to(tensor.device)
            return
        if tensor.device not in self._stages:
            self._stages[tensor.device] = _Stage(tensor.device, self._streams[tensor.device], self.send)
        with self._stages[tensor.device].holding(values) as part:
            yield part

    def end(self) -> Fence:
        """A fence behind everything begun so far, in both kinds of streams. `wait` waits for it too."""
        if self._bounce is not None:
            self._bounce.finish()
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
    """Two buffers on a device: a side stream fills one, by `send`, while the training uses the other."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, send: Callable[[Tensor, Tensor], None]) -> None:
        self._device, self._stream, self._send = device, stream, send
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
            self._send(values, part)
        training.wait_event(self._stream.record_event())
        try:
            yield part
        finally:
            self._free[turn] = training.record_event()


def _behind(events: list[torch.cuda.Event]) -> Fence:
    return (lambda: all(event.query() for event in events)) if events else passed
