"""Moves a model's tensors to and from the flat fp32 vector, on CPU and CUDA, and adds corrections to them.

A rank moves what it holds: of a sharded tensor its rows, of the others its share, for all ranks hold the same there.
Parameters of fewer bits than fp32 keep what rounding took from a correction as a residual, and are read as
x + residual (algorithms section 1): small corrections would be lost otherwise. On CUDA nothing here waits for the
device; a `Fence` says when the shared memory may be touched again. Nothing here may know the daemon.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossipdp.protocol.schema import MAX_BYTES, Frozen, Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.link import Region
from gossipdp.training.tensors.carried import Beside
from gossipdp.training.tensors.frozen import frozen_digests
from gossipdp.training.tensors.reference import Reference
from gossipdp.training.tensors.schema import candidates, exchanged, extent, local, places, unwrap
from gossipdp.training.tensors.streams import STAGED, Fence, SideStreams, passed, pin, pinned

__all__ = ["Fence", "Flat", "Layout", "Vector", "passed", "pinned"]

log = logging.getLogger("gossipdp.training")

Vector: TypeAlias = NDArray[np.float32]

_LOW: Final = (torch.bfloat16, torch.float16)


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

    def __init__(self, model: nn.Module, excluded: frozenset[str] = frozenset()) -> None:
        self.schema, self.tensors = exchanged(model, excluded)
        self._model = unwrap(model)
        self.reference = Reference(self.schema)
        self.beside = Beside(self._model, self.tensors, excluded)
        self._places = {entry.name: index for index, entry in enumerate(self.schema.entries)}
        self._known = {name for name, _, _ in candidates(self._model)}
        self._homes = self._find_homes()
        self._told = self._apart = False
        entries = self.schema.entries
        self.extents = [extent(tensor) for tensor in self.tensors]
        self._starts = [entry.offset + held.first for entry, held in zip(entries, self.extents, strict=True)]
        self._stops = [entry.offset + held.last for entry, held in zip(entries, self.extents, strict=True)]
        self._residuals: dict[int, Tensor] = {}
        self._variances = _variances(model, self.tensors)
        self.streams = SideStreams()
        self.streams.begin(self._devices())
        self.device = self.tensors[0].device
        self.sharded = any(held.sharded for held in self.extents)

    def parameters(self) -> list[Tensor]:
        """The exchanged tensors that are trained, and no buffers."""
        entries = zip(self.schema.entries, self.tensors, strict=True)
        return [tensor for entry, tensor in entries if entry.kind == "parameter"]

    def compare_frozen(self) -> None:
        """Tell in the schema what the parameters hold that are not trained: all of them are read."""
        room = MAX_BYTES - len(self.schema.to_bytes())
        self.schema = Schema(self.schema.entries, self._frozen(room), b"", self.schema.excluded)

    def _frozen(self, room: int) -> tuple[Frozen, ...]:
        return frozen_digests(self._model, room, frozenset(self.schema.excluded))

    @property
    def announced(self) -> Schema:
        """The schema as the daemon is told it, with the reference that buffers are told relative to."""
        return self.schema.referring(self.reference.digest)

    def refer(self) -> None:
        """What the buffers hold now is what they are told relative to, until the network's reference comes."""
        self.reference.take(self.tensors)

    @torch.no_grad()
    def adopt(self, reference: Buffer) -> None:
        """Tell buffers relative to the network's reference; those that had another take its values."""
        for index in self.reference.adopt(reference):
            self._find(index)
            value, tensor = self.reference.value(index), local(self.tensors[index])
            if value is not None and self._fits(index) and not self.extents[index].sharded:
                tensor.copy_(value.view(tensor.shape))
                if (residual := self.residual(index)) is not None:
                    residual.zero_()

    def residual(self, index: int) -> Tensor | None:
        """What rounding has kept out of tensor `index` so far, flat fp32; None for fp32 and fp64."""
        tensor, kept = self.tensors[index], self._residuals.get(index)
        if kept is None and tensor.dtype in _LOW:
            kept = torch.zeros(local(tensor).numel(), dtype=torch.float32, device=tensor.device)
            self._residuals[index] = kept
        elif kept is not None and kept.device != tensor.device:
            kept = self._residuals[index] = kept.to(tensor.device)
        return kept

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
        changed = self._follow()
        if changed and not self._told and not rank:
            self._told = True
            log.warning(
                "GD-319 the model has changed since it was attached: %s is not exchanged; add, replace and unfreeze "
                "parameters before attach, on every peer",
                changed,
            )
        for index in range(len(self.tensors)):
            self.residual(index)  # one that is new is made in the training's stream, and side streams follow that
        self.streams.begin(self._devices())
        for index, first, start, stop in self.shares(rank, ranks):
            tensor = self.tensors[index]
            if not self._fits(index):
                # A snapshot that is not the model must not be used by anybody.
                flat[start:stop].fill_(torch.nan)
                continue
            held, residual = local(tensor), self.residual(index)
            # A forward pass changes buffers: they are copied before it, parameters beside it.
            beside = tensor.is_cuda and self.schema.entries[index].kind == "parameter"
            with self.streams.beside(held) if beside else nullcontext():
                elements = held.reshape(-1)
                for begin in range(start, stop, STAGED):
                    end = min(begin + STAGED, stop)
                    values, target = elements[begin - first : end - first], flat[begin:end]
                    if self.schema.entries[index].kind == "buffer":
                        kept = None if residual is None else residual[begin - first : end - first]
                        values = self.reference.difference(index, begin - first, values, kept)
                    elif residual is not None:
                        values = values.float() + residual[begin - first : end - first]
                    if self._apart and ranks == 1 and tensor.is_cuda:
                        # What one rank has not pinned it may not copy together with what it has.
                        values = values.cpu()
                    target.copy_(values, non_blocking=pinned(target, values))
        return self.streams.end()

    def shares(self, rank: int, ranks: int) -> Iterator[tuple[int, int, int, int]]:
        """What one of `ranks` that read together writes: tensor, where in the flat vector what this rank holds of it
        begins, and the part [start, stop) of that."""
        for index, held in enumerate(self.extents):
            start, stop = self._starts[index], self._stops[index]
            if held.primary:
                for lower, upper in [(start, stop)] if held.sharded else self.own(start, stop, rank, ranks):
                    yield index, start, lower, upper

    def own(self, start: int, stop: int, rank: int, ranks: int) -> Iterator[tuple[int, int]]:
        """Of [start, stop), which every rank holds, what one of `ranks` is to move: a part of the parameters, and the
        first all buffers. Ranks differ in these (each has its own running averages), and where they meet again, in
        DistributedDataParallel, the first rank's hold."""
        trainable = self.schema.trainable
        share = -(-trainable // ranks)
        yield from _overlap(start, stop, rank * share, min((rank + 1) * share, trainable))
        if rank == 0:
            yield from _overlap(start, stop, trainable, self.schema.size)

    def buffers(self) -> list[Tensor]:
        """What ranks may differ in: buffers that each holds whole, and what rounding kept out of them."""
        found: list[Tensor] = []
        for index, entry in enumerate(self.schema.entries):
            self._find(index)
            if entry.kind == "buffer" and not self.extents[index].sharded and self._fits(index):
                residual = self.residual(index)
                found += [local(self.tensors[index])] + ([] if residual is None else [residual])
        return found

    def before_step(self) -> None:
        """Parameters are about to change: on the device, wait for the copy of what they were."""
        self.streams.wait()

    @torch.no_grad()
    def load(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x := values on [start, start + len(values)) of the flat vector; the residual is what rounding leaves over.

        Where x already is `values` nothing is written, so that fp64 parameters keep their low bits. `shards`, `rest`:
        change the tensors that are sharded, those that are not.
        """
        self.before_step()
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor = self.tensors[piece.number]
            fetched = self.streams.fetched(values[piece.start : piece.stop], tensor)
            with Flat(local(tensor)) as flat, fetched as part:
                target = flat[piece.first : piece.last]
                if self.schema.entries[piece.number].kind == "buffer":
                    self._load_buffer(piece, part, target)
                    continue
                target.copy_(torch.where(target.float() == part, target, part.to(tensor.dtype)))
                if (residual := self.residual(piece.number)) is not None:
                    torch.sub(part, target.float(), out=residual[piece.first : piece.last])

    @torch.no_grad()
    def add(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x += values on [start, start + len(values)) of the flat vector; the same bits on every device and rank."""
        self.before_step()
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor = self.tensors[piece.number]
            fetched, residual = (
                self.streams.fetched(values[piece.start : piece.stop], tensor),
                self.residual(piece.number),
            )
            with Flat(local(tensor)) as flat, fetched as part:
                target = flat[piece.first : piece.last]
                if self.schema.entries[piece.number].kind == "buffer":
                    self._add_to_buffer(part, target, None if residual is None else residual[piece.first : piece.last])
                elif residual is None:
                    target.add_(part)
                else:
                    kept = residual[piece.first : piece.last]
                    wanted, before = part + kept, target.float()
                    target.copy_(before + wanted)
                    torch.sub(wanted, target.float() - before, out=kept)
                if piece.number in self._variances:
                    # A correction is late: on a variance that has fallen meanwhile it may reach below zero.
                    target.clamp_(min=0.0)

    def _load_buffer(self, piece: Piece, part: Tensor, target: Tensor) -> None:
        residual = self.residual(piece.number)
        kept = None if residual is None else residual[piece.first : piece.last]
        stays = self.reference.difference(piece.number, piece.first, target, kept) == part
        wanted = self.reference.absolute(piece.number, piece.first, part, target)
        rounded = wanted.to(target.dtype)
        if kept is not None:
            left = torch.where(wanted.isfinite(), wanted - rounded.float(), 0.0)
            kept.copy_(torch.where(stays, kept, left))
        target.copy_(torch.where(stays, target, rounded))

    @staticmethod
    def _add_to_buffer(part: Tensor, target: Tensor, kept: Tensor | None) -> None:
        """target += part; where part is 0 no bit changes."""
        still = part == 0.0
        if kept is None:
            target.copy_(torch.where(still, target, target + part))
            return
        wanted, before = part + kept, target.float()
        after = (before + wanted).to(target.dtype)
        kept.copy_(torch.where(still, kept, wanted - (after.float() - before)))
        target.copy_(torch.where(still, target, after))

    def fence(self) -> Fence:
        """A fence behind everything begun so far."""
        return self.streams.fence()

    def finish(self) -> None:
        """Wait for everything begun so far; only where training is over, has not begun, or the memory goes."""
        self.streams.finish()

    def pin(self, region: Region, rank: int = 0, ranks: int = 1) -> None:
        """If this model is on CUDA: let it copy without a detour what one of `ranks` moves to and from `region`."""
        if not (devices := self._devices()):
            return
        self._apart = ranks > 1
        spans = [
            span
            for index, held in enumerate(self.extents)
            for whole in [(self._starts[index], self._stops[index])]
            for span in ([whole] if held.sharded else self.own(*whole, rank, ranks))
        ]
        for vector in (region.x, *region.slots):
            if not pin(vector, spans, devices[0]):
                return

    def _devices(self) -> list[torch.device]:
        return sorted({tensor.device for tensor in self.tensors if tensor.is_cuda}, key=str)

    def _follow(self) -> str:
        """Modules may be others by now. Returns the name of a tensor that ought to be exchanged and is not."""
        changed = ""
        self._homes = self._find_homes()
        for name, tensor, kind in candidates(self._model):
            index = self._places.get(name)
            if index is None:
                changed = changed or ("" if name in self._known or kind == "buffer" else name)
                continue
            self._find(index)
            # FSDP2 puts what it has gathered in the place of a shard, and the shard back.
            replaced = tensor is not self.tensors[index] and not self.extents[index].sharded
            if replaced or not self._fits(index):
                changed = changed or name
        return changed

    def _find_homes(self) -> dict[int, tuple[nn.Module, str]]:
        """Where each buffer is, for it may be another tensor after any forward pass."""
        found = ((self._places.get(name), module, key) for name, module, key in places(self._model))
        return {index: (module, key) for index, module, key in found if index is not None}

    def _find(self, index: int) -> None:
        """If tensor `index` is a buffer: take the one that is there now."""
        if index in self._homes:
            module, key = self._homes[index]
            tensor = module._buffers.get(key)
            if tensor is not None and tensor.is_floating_point() and tensor.shape == self.schema.entries[index].shape:
                self.tensors[index] = tensor

    def _fits(self, index: int) -> bool:
        return self.tensors[index].shape == self.schema.entries[index].shape

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
        """What this rank holds of [start, start + length), in pieces that `SideStreams` can fetch."""
        for index in self._overlapping(start, start + length):
            self._find(index)
            first, last = self._starts[index], self._stops[index]
            lower, upper = max(start, first), min(start + length, last)
            if lower < upper and (shards if self.extents[index].sharded else rest) and self._fits(index):
                for begin in range(lower, upper, STAGED):
                    end = min(begin + STAGED, upper)
                    yield Piece(index, begin - first, end - first, begin - start, end - start)


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


def _overlap(start: int, stop: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    lower, upper = max(start, first), min(stop, last)
    if lower < upper:
        yield lower, upper


def _variances(model: nn.Module, tensors: list[Tensor]) -> set[int]:
    """Which tensors are running variances of batch norms."""
    kind = nn.modules.batchnorm._NormBase
    found = {
        module.running_var.data_ptr()
        for module in unwrap(model).modules()
        if isinstance(module, kind) and module.running_var is not None
    }
    return {index for index, tensor in enumerate(tensors) if local(tensor).data_ptr() in found}
