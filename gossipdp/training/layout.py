"""Moves a model's tensors to and from the flat fp32 vector, on CPU and CUDA, and adds corrections to them.

A rank moves what it holds: of a sharded tensor its rows, of the others its share, for all ranks hold the same there.
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
from gossipdp.training.schema import exchanged, extent, local, unwrap

__all__ = ["Fence", "Flat", "Layout", "Vector", "passed", "pinned"]

log = logging.getLogger("gossipdp.training")

Vector: TypeAlias = NDArray[np.float32]
Fence: TypeAlias = Callable[[], bool]
"""True once every copy begun before is done; never waits"""

_LOW: Final = (torch.bfloat16, torch.float16)


def passed() -> bool:
    """The fence of copies that are done when they return."""
    return True


class Piece(NamedTuple):
    """Elements [first, last) of what this rank holds of a tensor, and where they stand in the flat vector."""

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
        entries = self.schema.entries
        self.extents = [extent(tensor) for tensor in self.tensors]
        self._starts = [entry.offset + held.first for entry, held in zip(entries, self.extents, strict=True)]
        self._stops = [entry.offset + held.last for entry, held in zip(entries, self.extents, strict=True)]
        self._residuals = {
            index: torch.zeros(local(tensor).numel(), dtype=torch.float32, device=tensor.device)
            for index, tensor in enumerate(self.tensors)
            if tensor.dtype in _LOW
        }
        self._variances = _variances(model, self.tensors)
        self._devices = sorted({tensor.device for tensor in self.tensors if tensor.is_cuda}, key=str)
        self._streams = {device: torch.cuda.Stream(device) for device in self._devices}  # type: ignore[no-untyped-call]
        self._copied: dict[torch.device, torch.cuda.Event] = {}
        self.device = self.tensors[0].device
        self.sharded = any(held.sharded for held in self.extents)

    def residual(self, index: int) -> Tensor | None:
        """What rounding has kept out of tensor `index` so far, flat fp32; None for fp32 and fp64."""
        return self._residuals.get(index)

    def replicated(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The runs of [start, stop) that every rank holds whole."""
        run = (start, start)
        for index in self._overlapping(start, stop):
            if self.extents[index].sharded:
                continue
            first, last = max(start, self._starts[index]), min(stop, self._stops[index])
            # Padding between two tensors belongs to nobody, and holds zeros.
            if run[1] > run[0] and not self._shards_between(run[1], first):
                run = (run[0], last)
                continue
            if run[1] > run[0]:
                yield run
            run = (first, last)
        if run[1] > run[0]:
            yield run

    @torch.no_grad()
    def read(self, into: Vector, rank: int = 0, ranks: int = 1) -> Fence:
        """into := x + residual, in the schema's order; shape ``(schema.size,)``, padding untouched.

        Of `ranks` that read together, each writes the shards it holds and its share of what all hold. On CUDA the copy
        runs beside what comes next, until `before_step`.
        """
        flat = torch.from_numpy(into)
        for device in self._devices:
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        for index, first, start, stop in self.shares(rank, ranks):
            tensor = self.tensors[index]
            # A forward pass changes buffers: they are copied before it, parameters beside it.
            beside = tensor.is_cuda and self.schema.entries[index].kind == "parameter"
            with torch.cuda.stream(self._streams[tensor.device] if beside else None):
                values = local(tensor).reshape(-1)[start - first : stop - first]
                residual = self._residuals.get(index)
                if residual is not None:
                    values = values.float() + residual[start - first : stop - first]
                flat[start:stop].copy_(values, non_blocking=pinned(flat, tensor))
        if not self._devices:
            return passed
        for device, stream in self._streams.items():
            self._copied[device] = stream.record_event()
        events = [*self._copied.values(), *self._mark()]
        return lambda: all(event.query() for event in events)  # type: ignore[no-untyped-call]

    def shares(self, rank: int, ranks: int) -> Iterator[tuple[int, int, int, int]]:
        """What one of `ranks` that read together writes: tensor, where in the flat vector what this rank holds of it
        begins, and the part [start, stop) of that."""
        share = -(-self.schema.size // ranks)
        for index, held in enumerate(self.extents):
            start, stop = self._starts[index], self._stops[index]
            if not held.sharded:
                start, stop = max(start, rank * share), min(stop, (rank + 1) * share)
            if start < stop and held.primary:
                yield index, self._starts[index], start, stop

    def before_step(self) -> None:
        """Parameters are about to change: on the device, wait for the copy of what they were."""
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)
        self._copied.clear()

    @torch.no_grad()
    def load(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x := values on [start, start + len(values)) of the flat vector; the residual is what rounding leaves over.

        Where x already is `values` nothing is written, so that fp64 parameters keep their low bits. `shards`, `rest`:
        change the tensors that are sharded, those that are not.
        """
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor = self.tensors[piece.number]
            part = values[piece.start : piece.stop].to(tensor.device, non_blocking=pinned(values, tensor))
            with Flat(local(tensor)) as flat:
                target = flat[piece.first : piece.last]
                target.copy_(torch.where(target.float() == part, target, part.to(tensor.dtype)))
                if (residual := self._residuals.get(piece.number)) is not None:
                    torch.sub(part, target.float(), out=residual[piece.first : piece.last])

    @torch.no_grad()
    def add(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x += values on [start, start + len(values)) of the flat vector; the same bits on every device and rank."""
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor = self.tensors[piece.number]
            part = values[piece.start : piece.stop].to(tensor.device, non_blocking=pinned(values, tensor))
            residual = self._residuals.get(piece.number)
            with Flat(local(tensor)) as flat:
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
        events = self._mark()
        return (lambda: all(event.query() for event in events)) if events else passed  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Wait for everything begun so far; only where training is over, or has not begun."""
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

    def _mark(self) -> list[torch.cuda.Event]:
        return [torch.cuda.current_stream(device).record_event() for device in self._devices]

    def _overlapping(self, start: int, stop: int) -> Iterator[int]:
        """The tensors of which some element stands in [start, stop), whoever holds it."""
        entries = self.schema.entries
        for index in range(max(0, bisect_right(entries, start, key=lambda entry: entry.offset) - 1), len(entries)):
            if entries[index].offset >= stop:
                return
            if entries[index].stop > start:
                yield index

    def _shards_between(self, start: int, stop: int) -> bool:
        return any(self.extents[index].sharded for index in self._overlapping(start, stop))

    def pieces(self, start: int, length: int, *, shards: bool, rest: bool) -> Iterator[Piece]:
        """What this rank holds of [start, start + length)."""
        for index in self._overlapping(start, start + length):
            first, last = self._starts[index], self._stops[index]
            lower, upper = max(start, first), min(start + length, last)
            if lower < upper and (shards if self.extents[index].sharded else rest):
                yield Piece(index, lower - first, upper - first, lower - start, upper - start)


class Flat:
    """A tensor's elements in row-major order, to be written: itself, or a copy that is put back (channels_last)."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> Tensor:
        self._flat = self._tensor.reshape(-1)
        return self._flat

    def __exit__(self, *_: object) -> None:
        if not self._tensor.is_contiguous():
            self._tensor.copy_(self._flat.view(self._tensor.shape))


def pinned(memory: Tensor, tensor: Tensor) -> bool:
    """Can what goes from one to the other be copied without waiting?"""
    return tensor.is_cuda and memory.is_pinned()


def _variances(model: nn.Module, tensors: list[Tensor]) -> set[int]:
    """Which tensors are running variances of batch norms."""
    kind = nn.modules.batchnorm._NormBase
    found = {
        module.running_var.data_ptr()
        for module in unwrap(model).modules()
        if isinstance(module, kind) and module.running_var is not None
    }
    return {index for index, tensor in enumerate(tensors) if local(tensor).data_ptr() in found}
