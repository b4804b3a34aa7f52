"""Moves a model's tensors to and from the flat fp32 vector, on CPU and CUDA, and adds corrections to them.

A rank moves its own rows of a sharded tensor, and its share of a tensor that all ranks hold. Parameters of fewer bits
than fp32 keep what rounding took from a correction as a residual, and are read as x + residual (algorithms section 1);
small corrections would be lost otherwise. On CUDA nothing here waits for the device; a `Fence` says when the shared
memory may be touched again. Nothing here knows the daemon.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossipdp.errors import ConfigError, GossipdpError
from gossipdp.protocol.schema import MAX_BYTES, Frozen, Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.link import Region
from gossipdp.training.messages import log
from gossipdp.training.reasons import warn
from gossipdp.training.tensors import arithmetic
from gossipdp.training.tensors.arithmetic import Flat
from gossipdp.training.tensors.blocks import encoded_elements
from gossipdp.training.tensors.carried import CarriedState
from gossipdp.training.tensors.fitted import fitted_names
from gossipdp.training.tensors.frozen import first_rank, frozen_digests
from gossipdp.training.tensors.pinning import Pins
from gossipdp.training.tensors.reference import Reference
from gossipdp.training.tensors.schema import DTYPES, candidates, exchanged, extent, local, places, unwrap
from gossipdp.training.tensors.streams import STAGED, Fence, SideStreams

__all__ = ["Layout", "Vector", "cut"]

Vector: TypeAlias = NDArray[np.float32]
"""shape (schema.size,)"""


CACHED: Final = 1 << 20
"""elements of a tensor on the CPU that are worked on at once: their values stay in its caches"""


class Piece(NamedTuple):
    """Elements [first, last) of what this rank holds of a tensor, and their place in the values that are moved."""

    entry: int
    """index of the tensor in the schema"""
    first: int
    last: int
    start: int
    stop: int


class Layout:
    """The exchanged tensors of one model, and the vector's schema.

    Args:
        model: as the script has it, wrapped or not.
        excluded: names of tensors that are not exchanged.
        warn: called with an error that does not end training.

    Raises:
        MismatchError: GD-304 or GD-305, as `exchanged` says.
    """

    def __init__(
        self,
        model: nn.Module,
        excluded: frozenset[str] = frozenset(),
        warn: Callable[[GossipdpError], None] = warn,
    ) -> None:
        self._warn = warn
        self.schema, self.tensors = exchanged(model, excluded)
        self._model = unwrap(model)
        self.reference = Reference(self.schema)
        fitted = fitted_names(self._model)
        self._fitted = {index for index, entry in enumerate(self.schema.entries) if entry.name in fitted}
        """buffers that stay this replica's own, and are 0 in the vector; also those whose shape changes later"""
        averaged = [tensor for index, tensor in enumerate(self.tensors) if index not in self._fitted]
        self.carried = CarriedState(self._model, averaged, excluded)
        self._indices = {entry.name: index for index, entry in enumerate(self.schema.entries)}
        self._known = {name for name, _, _ in candidates(self._model)}
        """names that could be exchanged at attach"""
        self._places = self._find_places()
        """module and key of each buffer"""
        self._built = self._find_built()
        """each place of a module or parameter, and what is there"""
        self._warned = False
        entries = self.schema.entries
        self.extents = [extent(tensor) for tensor in self.tensors]
        self._starts = [entry.offset + held.first for entry, held in zip(entries, self.extents, strict=True)]
        self._stops = [entry.offset + held.last for entry, held in zip(entries, self.extents, strict=True)]
        self._residuals: dict[int, Tensor] = {}
        self._finite: dict[int, Tensor] = {}
        """each buffer at the last `read`, where its elements were finite"""
        self._variances = arithmetic.variances(model, self.tensors)
        self.streams, self._pins = SideStreams(), Pins()
        self.streams.begin(self._devices())
        self.device = self.tensors[0].device
        self.sharded = any(held.sharded for held in self.extents)

    def parameters(self) -> list[Tensor]:
        """The exchanged parameters, without buffers."""
        entries = zip(self.schema.entries, self.tensors, strict=True)
        return [tensor for entry, tensor in entries if entry.kind == "parameter"]

    def compare_frozen(self) -> None:
        """Put digests of the frozen parameters into the schema. Reads all of them."""
        room = MAX_BYTES - len(self.schema.to_bytes())
        self.schema = Schema(self.schema.entries, self._frozen(room), b"", self.schema.excluded)

    def _frozen(self, room: int) -> tuple[Frozen, ...]:
        return frozen_digests(self._model, room, frozenset(self.schema.excluded))

    @property
    def announced(self) -> Schema:
        """The schema as the daemon gets it: with the digest of the buffers' reference."""
        return self.schema.referring(self.reference.digest)

    def refer(self) -> None:
        """The buffers' values now are their reference, until the network's comes."""
        self.reference.take(self.tensors)
        if self._fitted:
            log.log(
                logging.WARNING if first_rank() else logging.INFO,
                "%d masks of pruning and vectors of spectral norm are not averaged, the first is %s: each host keeps "
                "its own, and a joiner gets the network's with the model",
                len(self._fitted),
                self.schema.entries[min(self._fitted)].name,
            )

    @torch.no_grad()
    def adopt(self, reference: Buffer) -> None:
        """Use the network's reference for buffers. Buffers with another reference take its values."""
        for index in self.reference.adopt(reference):
            self._find(index)
            value, tensor = self.reference.value(index), local(self.tensors[index])
            if value is not None and self._fits(index) and not self.extents[index].sharded:
                tensor.copy_(value.view(tensor.shape))
                if (residual := self.residual(index)) is not None:
                    residual.zero_()

    def residual(self, index: int) -> Tensor | None:
        """What rounding has kept back from tensor `index`, flat int16 (`arithmetic`); None while that is nothing."""
        kept = self._residuals.get(index)
        if kept is not None and kept.device != self.tensors[index].device:
            kept = self._residuals[index] = kept.to(self.tensors[index].device)
        return kept

    def _with_residual(self, index: int) -> Tensor | None:
        """As `residual`; one of bf16 or fp16 is made if there is none. A peer without corrections never needs one."""
        tensor = self.tensors[index]
        if index not in self._residuals and tensor.dtype in arithmetic.LOW:
            self._residuals[index] = torch.zeros(local(tensor).numel(), dtype=torch.int16, device=tensor.device)
        return self.residual(index)

    def replicated(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The runs [first, last) of [start, stop) that every rank holds whole."""
        run = (start, start)
        for index in self._overlapping(start, stop):
            if self.extents[index].sharded:
                continue
            first, last = max(start, self._starts[index]), min(stop, self._stops[index])
            # Padding between two tensors belongs to none of them, and holds zeros.
            if run[1] > run[0] and not self._shards_between(run[1], first):
                run = (run[0], last)
                continue
            if run[1] > run[0]:
                yield run
            run = (first, last)
        if run[1] > run[0]:
            yield run

    @torch.no_grad()
    def read(self, into: Vector, rank: int = 0, ranks: int = 1, plus: Sequence[tuple[int, int]] = ()) -> Fence:
        """into := x + residual, in the schema's order. Padding becomes 0.

        On CUDA the copy runs beside the training, until `before_step`.

        Args:
            into: shape (schema.size,).
            rank, ranks: of the ranks that read together, each writes its shards and its share of the rest.
            plus: spans [start, stop) on which what stands in `into` is added.
        """
        flat = torch.from_numpy(into)
        if not rank:
            into[self.schema.padding] = 0.0
        changed = self._follow_changes()
        if changed and not self._warned and not rank:
            self._warned = True
            cause = "the model has changed since it was attached"
            do = "add, replace and unfreeze parameters before attach, on every peer"
            self._warn(ConfigError("GD-319", cause, seen=changed, do=do))
        self._mend_buffers()
        self.streams.begin(self._devices())
        for index, first, start, stop in self.shares(rank, ranks):
            tensor = self.tensors[index]
            if index in self._fitted:
                flat[start:stop].zero_()
                continue
            if not self._fits(index):
                # A snapshot that is not the model must not be used: the daemon refuses NaN.
                flat[start:stop].fill_(torch.nan)
                continue
            held, residual = local(tensor), self.residual(index)
            # A forward pass changes buffers: they are copied before it. Parameters are copied beside it.
            beside = tensor.is_cuda and self.schema.entries[index].kind == "parameter"
            with self.streams.beside(held) if beside else nullcontext():
                for begin, end in cut(start, stop, tensor):
                    values, target = Flat(held, begin - first, end - first).read(), flat[begin:end]
                    if self.schema.entries[index].kind == "buffer":
                        kept = None if residual is None else residual[begin - first : end - first]
                        values = self.reference.difference(index, begin - first, values, kept)
                    elif residual is not None:
                        values = arithmetic.widened(values, residual[begin - first : end - first])
                    if plus:
                        values = values + _only(plus, target, begin).to(values.device)
                    self.streams.store(values, target)
        return self.streams.end()

    def _mend_buffers(self) -> None:
        """Buffer elements that are NaN or infinite take their last finite values.

        A batch that overflows spoils running statistics although the script skips its step. Elements whose reference
        is infinite are not exchanged and stay. On CUDA nothing is logged, because that would wait for the device.
        """
        for index, entry in enumerate(self.schema.entries):
            base = self.reference.value(index)
            if entry.kind != "buffer" or base is None or not self._fits(index) or self.extents[index].sharded:
                continue
            tensor = local(self.tensors[index])
            base = base.to(device=tensor.device, dtype=tensor.dtype).view(tensor.shape)
            last = self._finite.get(index)
            if last is None or last.device != tensor.device:
                last = base
            broken = ~tensor.isfinite() & base.isfinite()
            if not tensor.is_cuda and not broken.any():
                self._finite[index] = tensor.clone()
                continue
            if not tensor.is_cuda:
                log.warning("%s had NaN or infinite values, which were replaced by their last finite ones", entry.name)
            tensor.copy_(torch.where(broken, last, tensor))
            self._finite[index] = tensor.clone()

    def shares(self, rank: int, ranks: int) -> Iterator[tuple[int, int, int, int]]:
        """What one of `ranks` that read together writes.

        Yields:
            Index of the tensor, place of this rank's first element in the vector, and the part [start, stop) to write.
        """
        for index, held in enumerate(self.extents):
            start, stop = self._starts[index], self._stops[index]
            if held.primary:
                for lower, upper in [(start, stop)] if held.sharded else self.own(start, stop, rank, ranks):
                    yield index, start, lower, upper

    def own(self, start: int, stop: int, rank: int, ranks: int) -> Iterator[tuple[int, int]]:
        """The runs of [start, stop), which every rank holds, that one of `ranks` moves.

        Each moves a part of the parameters, and the first moves all buffers: each rank has its own running averages,
        and DistributedDataParallel takes the first rank's.
        """
        trainable = self.schema.trainable
        share = -(-trainable // ranks)
        yield from _overlap(start, stop, rank * share, min((rank + 1) * share, trainable))
        if rank == 0:
            yield from _overlap(start, stop, trainable, self.schema.size)

    def buffers(self) -> list[Tensor]:
        """What may differ between ranks: buffers that each holds whole, and their residuals."""
        found: list[Tensor] = []
        for index, entry in enumerate(self.schema.entries):
            self._find(index)
            if entry.kind == "buffer" and not self.extents[index].sharded and self._fits(index):
                residual = self._with_residual(index)  # every rank's list must be the same
                found += [local(self.tensors[index])] + ([] if residual is None else [residual])
        return found

    def before_step(self) -> None:
        """Parameters are about to change: the device waits until their last values are copied."""
        self.streams.wait()

    @torch.no_grad()
    def load(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x := values on [start, start + len(values)) of the flat vector; the residual is what rounding leaves over.

        It waits for the device while a bf16 or fp16 tensor has no residual.

        Args:
            values: fp32, flat.
            shards: change sharded tensors.
            rest: change tensors that every rank holds whole.
        """
        self.before_step()
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor = self.tensors[piece.entry]
            fetched = self.streams.fetched(values[piece.start : piece.stop], tensor)
            with Flat(local(tensor), piece.first, piece.last) as target, fetched as part:
                if self.residual(piece.entry) is None and arithmetic.leaves_nothing(target, part):
                    kept = None
                else:
                    kept = self._kept(piece)
                if self.schema.entries[piece.entry].kind == "buffer":
                    stays = self.reference.difference(piece.entry, piece.first, target, kept) == part
                    wanted = self.reference.absolute(piece.entry, piece.first, part, target)
                    arithmetic.load_buffer(target, wanted, stays, kept)
                else:
                    arithmetic.load(target, part, kept)
            if self.schema.entries[piece.entry].kind == "buffer":
                self._finite[piece.entry] = local(tensor).clone()

    @torch.no_grad()
    def add(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """x += values on [start, start + len(values)) of the flat vector; the same bits on every device and rank.

        Args: as `load`.
        """
        self.before_step()
        for piece in self.pieces(start, len(values), shards=shards, rest=rest):
            tensor, kept = self.tensors[piece.entry], self._kept(piece)
            fetched = self.streams.fetched(values[piece.start : piece.stop], tensor)
            with Flat(local(tensor), piece.first, piece.last) as target, fetched as part:
                if self.schema.entries[piece.entry].kind == "buffer":
                    arithmetic.add_to_buffer(target, part, kept)
                else:
                    arithmetic.add(target, part, kept)
                if piece.entry in self._variances:
                    # A correction comes late: a variance that has fallen meanwhile could become negative.
                    target.clamp_(min=0.0)

    def _kept(self, piece: Piece) -> Tensor | None:
        residual = self._with_residual(piece.entry)
        return None if residual is None else residual[piece.first : piece.last]

    def fence(self) -> Fence:
        """A fence behind everything begun so far."""
        return self.streams.fence()

    def finish(self) -> None:
        """Wait for everything begun so far. Only for when training is over or has not begun, or the memory goes."""
        self.streams.finish()

    def pin(self, region: Region, rank: int = 0, ranks: int = 1) -> None:
        """If this model is on CUDA: `pin_more` is to pin what one of `ranks` moves to and from `region`."""
        if not (devices := self._devices()):
            return
        spans = [
            span
            for index, held in enumerate(self.extents)
            for whole in [(self._starts[index], self._stops[index])]
            for span in ([whole] if held.sharded else self.own(*whole, rank, ranks))
        ]
        if ranks > 1:
            spans += encoded_elements(self.schema, [(start, stop) for *_, start, stop in self.shares(rank, ranks)])
        self._pins.want(region.buffers, spans, devices[0])

    def pin_more(self, *, everything: bool = False) -> bool:
        """Pin as much as a step boundary has time for, or `everything`. Returns True once there is no more to pin.

        What is not pinned yet is copied all the same, more slowly.
        """
        while not (done := self._pins.step()) and everything:
            continue
        return done

    @property
    def unpinned(self) -> int:
        """Bytes of the shared memory that CUDA has refused to pin."""
        return self._pins.refused

    def _devices(self) -> list[torch.device]:
        return sorted({tensor.device for tensor in self.tensors if tensor.is_cuda}, key=str)

    def replaced(self) -> str:
        """Follow parameters that others of their shape have replaced. Returns the first one's name, or "".

        Call it before what is exchanged is read or changed. It looks at every place of the model.
        """
        if all(held.get(key) is each for held, key, each in self._built):
            return ""
        before = [*self.tensors]
        self._follow_changes()
        self._built = self._find_built()
        now = zip(self.schema.entries, before, self.tensors, strict=True)
        return next((entry.name for entry, one, other in now if entry.kind == "parameter" and one is not other), "")

    def _find_built(self) -> list[tuple[dict[str, Any], str, object]]:
        """FSDP2 puts a gathered tensor in the place of a shard, and later puts the shard back: these are left out."""
        return [
            (held, key, each)
            for module in self._model.modules()
            for held in (module._modules, module._parameters)
            for key, each in held.items()
            if type(each) in (nn.Parameter, Tensor) or isinstance(each, nn.Module)
        ]

    def _follow_changes(self) -> str:
        """Find the tensors of replaced modules. Returns what is wrong then: a parameter is not exchanged, or gone."""
        changed = ""
        known = {id(tensor) for tensor in self.tensors}
        self._places = self._find_places()
        for name, tensor, kind in candidates(self._model):
            index = self._indices.get(name)
            if index is None:
                # Pruning and parametrizations give a parameter another name.
                stranger = name not in self._known and kind == "parameter" and id(tensor) not in known
                changed = changed or (f"{name} is not exchanged" if stranger else "")
                continue
            self._find(index)
            if kind == "buffer":
                self._leave_out(index, tensor)
                continue
            if tensor is not self.tensors[index] and self._could_be(index, tensor):
                self.tensors[index] = tensor
                self._residuals.pop(index, None)
            # FSDP2 replaces a shard by the gathered tensor, and later puts the shard back.
            replaced = tensor is not self.tensors[index] and not self.extents[index].sharded
            if replaced or not self._fits(index):
                changed = changed or f"{name} is not exchanged"
        here = {id(tensor) for tensor in self._model.parameters()}
        for index, entry in enumerate(self.schema.entries):
            if entry.kind == "parameter" and not self.extents[index].sharded and id(self.tensors[index]) not in here:
                gone = f"the attached {entry.name} is gone, and its last values hold the other hosts back"
                return f"{changed}, and {gone}" if changed else gone
        return changed

    def _leave_out(self, index: int, buffer: Tensor) -> None:
        """Average buffer `index` no more if it has another shape than at attach, as observers change theirs."""
        if buffer.shape != self.schema.entries[index].shape and index not in self._fitted:
            self._fitted.add(index)
            log.warning(
                "%s has another shape than at attach and is not averaged: each host keeps its own, and a joiner gets "
                "the network's with the model",
                self.schema.entries[index].name,
            )

    def _could_be(self, index: int, tensor: Tensor) -> bool:
        """True if `tensor` can be exchanged in the place of tensor `index`. A gathered tensor cannot, in a shard's."""
        plain = type(tensor) is type(self.tensors[index]) is nn.Parameter
        dense = tensor.layout is torch.strided and not tensor.is_meta and tensor.dtype in DTYPES
        return plain and dense and tensor.shape == self.schema.entries[index].shape

    def _find_places(self) -> dict[int, tuple[nn.Module, str]]:
        """Module and key of each buffer: after any forward pass another tensor may be there."""
        found = ((self._indices.get(name), module, key) for name, module, key in places(self._model))
        return {index: (module, key) for index, module, key in found if index is not None}

    def _find(self, index: int) -> None:
        """If tensor `index` is a buffer: use the one that is in its place now."""
        if index in self._places:
            module, key = self._places[index]
            tensor = module._buffers.get(key)
            if tensor is not None and tensor.is_floating_point() and tensor.shape == self.schema.entries[index].shape:
                self.tensors[index] = tensor

    def _fits(self, index: int) -> bool:
        return self.tensors[index].shape == self.schema.entries[index].shape

    def _overlapping(self, start: int, stop: int) -> Iterator[int]:
        """Indices of the tensors with an element in [start, stop), on any rank."""
        entries = self.schema.entries
        for index in range(max(0, bisect_right(entries, start, key=lambda entry: entry.offset) - 1), len(entries)):
            if entries[index].offset >= stop:
                return
            if entries[index].stop > start:
                yield index

    def _shards_between(self, start: int, stop: int) -> bool:
        return any(self.extents[index].sharded for index in self._overlapping(start, stop))

    def pieces(self, start: int, length: int, *, shards: bool, rest: bool) -> Iterator[Piece]:
        """What this rank holds of [start, start + length), in pieces that `SideStreams` can fetch.

        Args:
            shards, rest: as `load`.
        """
        for index in self._overlapping(start, start + length):
            self._find(index)
            first, last = self._starts[index], self._stops[index]
            lower, upper = max(start, first), min(start + length, last)
            here = (shards if self.extents[index].sharded else rest) and index not in self._fitted
            if lower < upper and here and self._fits(index):
                for begin, end in cut(lower, upper, self.tensors[index]):
                    yield Piece(index, begin - first, end - first, begin - start, end - start)


def cut(start: int, stop: int, tensor: Tensor) -> Iterator[tuple[int, int]]:
    """[start, stop) of `tensor` in pieces."""
    most = STAGED if tensor.is_cuda else min(STAGED, CACHED)
    for begin in range(start, stop, most):
        yield begin, min(begin + most, stop)


def _overlap(start: int, stop: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    lower, upper = max(start, first), min(stop, last)
    if lower < upper:
        yield lower, upper


def _only(spans: Sequence[tuple[int, int]], values: Tensor, start: int) -> Tensor:
    """A copy of `values`, the vector's part from `start` on, with 0 outside of `spans`."""
    kept = torch.zeros_like(values)
    for first, last in spans:
        for lower, upper in _overlap(first - start, last - start, 0, len(values)):
            kept[lower:upper] = values[lower:upper]
    return kept
