"""Moves a model's tensors to and from the flat fp32 vector, on CPU and CUDA, and adds corrections to them.

Parameters of fewer bits than fp32 keep what rounding took from a correction as a residual, and are read as
x + residual (algorithms section 1): small corrections would be lost otherwise. On CUDA nothing here waits for the
device; a `Fence` says when the shared memory may be touched again. Nothing here may know the daemon.
"""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossipdp.runtime.link import Region
from gossipdp.training.schema import exchanged, unwrap

__all__ = ["Fence", "Layout", "passed"]

log = logging.getLogger("gossipdp.training")

Vector: TypeAlias = NDArray[np.float32]
Fence: TypeAlias = Callable[[], bool]
"""True once every copy begun before is done; never waits"""

_LOW: Final = (torch.bfloat16, torch.float16)


def passed() -> bool:
    """The fence of copies that are done when they return."""
    return True


class _Piece(NamedTuple):
    """Elements [first, last) of a tensor, by its number, and where they stand in the flat piece at hand."""

    number: int
    first: int
    last: int
    start: int
    stop: int


class Layout:
    """The exchanged tensors of one model.

    Raises:
        MismatchError: GD-304 or GD-305, as `exchanged` says.
    """

    def __init__(self, model: nn.Module) -> None:
        self.schema, self.tensors = exchanged(model)
        self._offsets = [entry.offset for entry in self.schema.entries]
        self._residuals = {
            index: torch.zeros(tensor.numel(), dtype=torch.float32, device=tensor.device)
            for index, tensor in enumerate(self.tensors)
            if tensor.dtype in _LOW
        }
        self._variances = _variances(model, self.tensors)
        self._devices = sorted({tensor.device for tensor in self.tensors if tensor.is_cuda}, key=str)
        self.device = self.tensors[0].device

    def residual(self, index: int) -> Tensor | None:
        """What rounding has kept out of tensor `index` so far, flat fp32; None for fp32 and fp64."""
        return self._residuals.get(index)

    @torch.no_grad()
    def read(self, into: Vector) -> Fence:
        """into := x + residual, in the schema's order; shape ``(schema.size,)``, padding untouched."""
        flat = torch.from_numpy(into)
        for index, (entry, tensor) in enumerate(zip(self.schema.entries, self.tensors, strict=True)):
            residual = self._residuals.get(index)
            source = tensor if residual is None else tensor.float() + residual.view(tensor.shape)
            flat[entry.offset : entry.stop].view(tensor.shape).copy_(source, non_blocking=_pinned(flat, tensor))
        return self.fence()

    @torch.no_grad()
    def load(self, start: int, values: Tensor) -> None:
        """x := values on [start, start + len(values)) of the flat vector; the residual is what rounding leaves over.

        Where x already is `values` nothing is written, so that fp64 parameters keep their low bits.
        """
        for piece in self._pieces(start, len(values)):
            tensor = self.tensors[piece.number]
            part = values[piece.start : piece.stop].to(tensor.device, non_blocking=_pinned(values, tensor))
            with _Flat(tensor) as flat:
                target = flat[piece.first : piece.last]
                target.copy_(torch.where(target.float() == part, target, part.to(tensor.dtype)))
                if (residual := self._residuals.get(piece.number)) is not None:
                    torch.sub(part, target.float(), out=residual[piece.first : piece.last])

    @torch.no_grad()
    def add(self, start: int, values: Tensor) -> None:
        """x += values on [start, start + len(values)) of the flat vector; the same bits on every device and rank."""
        for piece in self._pieces(start, len(values)):
            tensor = self.tensors[piece.number]
            part = values[piece.start : piece.stop].to(tensor.device, non_blocking=_pinned(values, tensor))
            residual = self._residuals.get(piece.number)
            with _Flat(tensor) as flat:
                target = flat[piece.first : piece.last]
                if residual is None:
                    target.add_(part)
                else:
                    kept = residual[piece.first : piece.last]
                    wanted, before = part + kept, target.float()
                    target.copy_(before + wanted)
                    torch.sub(wanted, target.float() - before, out=kept)
                if piece.number in self._variances:
                    # A correction is late: on a variance that has fallen meanwhile it may reach below zero.
                    target.clamp_(min=0.0)

    def fence(self) -> Fence:
        """A fence behind everything begun so far."""
        if not self._devices:
            return passed
        events = []
        for device in self._devices:
            with torch.cuda.device(device):
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                events.append(event)
        return lambda: all(event.query() for event in events)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Wait for everything begun so far; only where training is over."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def pin(self, region: Region) -> None:
        """Let CUDA copy to and from `region` without a detour, if this model is on CUDA."""
        if not self._devices:
            return
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for vector in (region.x, *region.slots):
            result = runtime.cudaHostRegister(vector.ctypes.data, vector.nbytes, 0)
            if int(result) != 0:
                log.info("the shared memory cannot be pinned (CUDA error %d): copies will be slower", int(result))
                return
            weakref.finalize(vector, runtime.cudaHostUnregister, vector.ctypes.data)

    def _pieces(self, start: int, length: int) -> Iterator[_Piece]:
        stop = start + length
        for index in range(max(0, bisect_right(self._offsets, start) - 1), len(self._offsets)):
            entry = self.schema.entries[index]
            if entry.offset >= stop:
                return
            lower, upper = max(start, entry.offset), min(stop, entry.stop)
            if lower < upper:
                yield _Piece(index, lower - entry.offset, upper - entry.offset, lower - start, upper - start)


class _Flat:
    """A tensor's elements in row-major order, to be written: itself, or a copy that is put back (channels_last)."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> Tensor:
        self._flat = self._tensor.reshape(-1)
        return self._flat

    def __exit__(self, *_: object) -> None:
        if not self._tensor.is_contiguous():
            self._tensor.copy_(self._flat.view(self._tensor.shape))


def _pinned(memory: Tensor, tensor: Tensor) -> bool:
    return tensor.is_cuda and memory.is_pinned()


def _variances(model: nn.Module, tensors: list[Tensor]) -> set[int]:
    """Which tensors are running variances of batch norms."""
    kind = nn.modules.batchnorm._NormBase
    found = {
        module.running_var.data_ptr()
        for module in unwrap(model).modules()
        if isinstance(module, kind) and module.running_var is not None
    }
    return {index for index, tensor in enumerate(tensors) if tensor.data_ptr() in found}
