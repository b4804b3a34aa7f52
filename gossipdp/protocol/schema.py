"""The layout of a model as one flat fp32 vector: the place of each tensor, and what two peers must agree on.

Trainable parameters come first, one after another in the model's order. Floating-point buffers follow from the next
multiple of 256, because they are plain averages (outer lr 1, momentum 0). Offsets follow from names and shapes alone,
so the canonical bytes hold none, and entries can neither overlap nor leave a gap. Frozen parameters have no place in
the vector; a digest of each tells whether two hosts train on top of the same ones. For buffers the vector holds
differences to a reference (`carried_state`). The schema holds the digest of that reference, and the names of tensors
that the script has excluded. It holds no values.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import RemoteProtocolError

__all__ = ["MOST", "Dtype", "Entry", "Frozen", "Kind", "Mismatch", "Schema", "chunk_parameters", "chunk_spans"]

MAX_BYTES: Final = 4 << 20
"""most bytes of a schema; it travels as one buffer of a manifest"""
MAX_ENTRIES: Final = 65_536
MAX_NAME: Final = 1_024
"""characters"""
MAX_ALSO: Final = 1_024
"""other names of one tensor"""
MAX_SIZE: Final = 1 << 36
"""parameters of a model"""
ALIGNMENT: Final = 256
"""most parameters of a codec block; no block of any protocol version holds both parameters and buffers"""
_VERSION: Final = 1

_CHUNKS: Final = 16
"""least number of chunks of a model ..."""
_LEAST: Final = 8_192
"""... unless they would be smaller than this, 4 KiB of payload at 4 bits"""
MOST: Final = 1_048_576
"""most parameters of a chunk: 256 KiB of payload at 4 bits"""

Dtype: TypeAlias = Literal["bfloat16", "float16", "float32", "float64"]
"""dtype of the model's own tensor; the flat vector is fp32 throughout"""
Kind: TypeAlias = Literal["buffer", "parameter"]
Shape: TypeAlias = Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_SIZE)], ...], Meta(max_length=16)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Digest: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Entry(NamedTuple):
    """One tensor: its row-major elements stand at ``[offset, offset + numel)``."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    kind: Kind
    offset: int
    also: tuple[str, ...] = ()
    """Its other names, where weights are tied. Exports use them; peers do not compare them."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Offset past the last element."""
        return self.offset + self.numel

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}"


"""said of frozen parameters if only some of them have other values"""


class Frozen(NamedTuple):
    """A parameter that is not trained, with the digest of its shape, dtype and values."""

    name: str
    digest: bytes


class _Spec(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry in the canonical bytes."""

    name: Name
    shape: Shape
    dtype: Dtype
    kind: Kind
    also: Annotated[tuple[Name, ...], Meta(max_length=MAX_ALSO)] = ()
    """omitted if there are none"""


class _Written(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    entries: Annotated[tuple[_Spec, ...], Meta(min_length=1, max_length=MAX_ENTRIES)]
    frozen: Annotated[tuple[tuple[Name, Digest], ...], Meta(max_length=MAX_ENTRIES)] = ()
    """omitted if there are none"""
    reference: Annotated[bytes, Meta(max_length=16)] = b""
    excluded: Annotated[tuple[Name, ...], Meta(max_length=MAX_ENTRIES)] = ()


_decoder = msgspec.msgpack.Decoder(_Written)
_encoder = msgspec.msgpack.Encoder()


class Mismatch(enum.StrEnum):
    """How two models differ, for advice. The value travels to the training process."""

    NONE = ""
    TENSORS = "tensors"
    """in a tensor that is exchanged"""
    FROZEN = "frozen"
    """in frozen parameters"""
    SOME_FROZEN = "some frozen"
    """in some frozen parameters, and the others are equal"""


class Schema:
    """A model's layout. It never changes, and is equal to another if its bytes are.

    Args:
        entries: parameters first, then buffers, each at the offset that the layout gives it. `Schema.of` computes them.
        frozen: the parameters that are not trained; none if they are not to be compared.
        reference: digest of the reference of buffers (`carried_state.reference_digest`); b"" if it is 0.
        excluded: names of tensors that the script keeps from being exchanged.

    Raises:
        ValueError: the entries are not such a layout.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        frozen: Iterable[Frozen] = (),
        reference: bytes = b"",
        excluded: Iterable[str] = (),
    ) -> None:
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.frozen: tuple[Frozen, ...] = tuple(sorted(frozen))
        _check(self.entries)
        names = [each.name for each in self.frozen]
        if len(set(names)) != len(names):
            raise ValueError("two frozen parameters have the same name")
        self.reference, self.excluded = reference, tuple(sorted(set(excluded)))
        if len(reference) not in (0, 16):
            raise ValueError(f"a reference's digest of {len(reference)} bytes")
        specs = tuple(entry[:4] for entry in self.entries)
        named = tuple((*entry[:4], entry.also) if entry.also else entry[:4] for entry in self.entries)
        shared = (reference, self.excluded) if self.excluded else (reference,) if reference else ()
        self._layout: bytes = _encoder.encode((_VERSION, specs, (), *shared) if shared else (_VERSION, specs))
        rest = (self.frozen, *shared) if self.frozen or shared else ()
        self._bytes = _encoder.encode((_VERSION, named, *rest))
        if len(self._bytes) > MAX_BYTES:
            raise ValueError(f"the schema takes {len(self._bytes)} bytes, limit {MAX_BYTES}")

    @classmethod
    def of(
        cls,
        tensors: Iterable[tuple[str, tuple[int, ...], Dtype, Kind]],
        frozen: Iterable[Frozen] = (),
        also: Mapping[str, tuple[str, ...]] | None = None,
        reference: bytes = b"",
        excluded: Iterable[str] = (),
    ) -> Schema:
        """Lay out tensors (name, shape, dtype, kind). Parameters move before buffers; the order is kept otherwise.

        Args:
            also: first name -> other names of a tied tensor.
        """
        listed = sorted(tensors, key=lambda tensor: tensor[3] == "buffer")
        entries: list[Entry] = []
        for name, shape, dtype, kind in listed:
            offset = _next_offset(entries[-1] if entries else None, kind)
            entries.append(Entry(name, shape, dtype, kind, offset, tuple((also or {}).get(name, ()))))
        return cls(entries, frozen, reference, excluded)

    def referring(self, reference: bytes) -> Schema:
        """The same layout, with buffers relative to another reference."""
        return Schema(self.entries, self.frozen, reference, self.excluded)

    @property
    def size(self) -> int:
        """Elements of the flat vector, the padding before the buffers included."""
        return self.entries[-1].stop

    @cached_property
    def trainable(self) -> int:
        """Offset of the first buffer; `size` if there is none."""
        return next((entry.offset for entry in self.entries if entry.kind == "buffer"), self.size)

    def spans(self) -> list[slice]:
        """The chunks, see `chunk_parameters`."""
        return chunk_spans(self.size, self.trainable, chunk_parameters(self.size))

    def averaged(self) -> int:
        """Number of chunks that hold buffers. They are the last ones."""
        return -(-(self.size - self.trainable) // chunk_parameters(self.size))

    @cached_property
    def padding(self) -> slice:
        """The gap between parameters and buffers. Its values belong to no tensor."""
        ends = (entry.stop for entry in self.entries if entry.kind == "parameter")
        return slice(max(ends, default=self.trainable), self.trainable)

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """First element of each tensor, and of the padding. No block of a codec spans two of them."""
        starts = {entry.offset for entry in self.entries}
        return tuple(sorted(starts | ({self.padding.start} if self.padding.start < self.padding.stop else set())))

    @cached_property
    def digest(self) -> bytes:
        """16-byte BLAKE2b of layout, reference and exclusions: two peers average only if theirs are equal.

        Frozen parameters are compared when a model is attached (GD-301), because a joiner knows them from one source
        only.
        """
        return hashlib.blake2b(self._layout, digest_size=16, person=b"gossipdp schema").digest()

    def to_bytes(self) -> bytes:
        """The canonical bytes: equal layouts have equal bytes."""
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> Schema:
        """Inverse of `to_bytes`.

        Raises:
            RemoteProtocolError: the bytes are not what `to_bytes` gives.
        """
        if len(data) > MAX_BYTES:
            raise RemoteProtocolError(f"schema of {len(data)} bytes, limit {MAX_BYTES}")
        try:
            written = _decoder.decode(data)
            specs = ((spec.name, spec.shape, spec.dtype, spec.kind) for spec in written.entries)
            also = {spec.name: spec.also for spec in written.entries}
            frozen = (Frozen(*each) for each in written.frozen)
            schema = cls.of(specs, frozen, also, written.reference, written.excluded)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"schema: {error!s:.120}") from None
        if schema.to_bytes() != data:
            raise RemoteProtocolError("schema: not in canonical form")
        return schema

    def first_difference(self, other: Schema) -> str:
        """The first difference between the network's schema (`self`) and this model's (`other`), as text; "" for none.

        A parameter that only one of them trains is named as well, if the other lists it as frozen.

        Frozen parameters are compared if both schemas list them. References are not compared: a joiner takes over the
        network's.
        """
        for number, (mine, theirs) in enumerate(zip(self.entries, other.entries, strict=False)):
            if mine[:5] != theirs[:5]:
                kind = mine.kind if mine.kind == theirs.kind else "tensor"
                text = f"{kind} {number}: {mine} in the network, {theirs} in this model"
                return text + self._trained_difference(other)
        shared = min(len(self.entries), len(other.entries))
        if len(self.entries) == len(other.entries):
            return self._frozen_difference(other)
        longer, where = (self, "the network") if len(self.entries) > shared else (other, "this model")
        extra = longer.entries[shared]
        counts = f"{len(self.entries)} tensors in the network, {len(other.entries)} in this model"
        text = f"{counts}; the first that only {where} has is {extra.kind} {extra}"
        return text + self._trained_difference(other)

    def mismatch(self, other: Schema) -> Mismatch:
        """What kind of difference `first_difference` tells."""
        if [each[:5] for each in self.entries] != [each[:5] for each in other.entries]:
            return Mismatch.TENSORS
        apart = self._frozen_apart(other)
        some = dict(self.frozen).keys() == dict(other.frozen).keys() and len(apart) < len(other.frozen)
        return (Mismatch.SOME_FROZEN if some else Mismatch.FROZEN) if apart else Mismatch.NONE

    def exclusion_difference(self, other: Schema) -> str:
        """The first tensor that only one of the two models excludes, as text; "" for none."""
        apart = sorted(set(self.excluded) ^ set(other.excluded))
        if not apart:
            return ""
        where = "the network, and not here" if apart[0] in self.excluded else "this model, and not in the network"
        return f"attach(exclude=...): {apart[0]} is excluded in {where}" + (
            f", and so {len(apart)} in all" if len(apart) > 1 else ""
        )

    def _trained_difference(self, other: Schema) -> str:
        told = "; {} is {} in the network and {} here: set requires_grad before attach as on the other hosts"
        sides = ((self, other, "frozen", "trained"), (other, self, "trained", "frozen"))
        for frozen, trained, network, here in sides:
            names = {each.name for each in frozen.frozen}
            for entry in trained.entries:
                if entry.name in names:
                    return told.format(entry.name, network, here)
        return ""

    def _frozen_apart(self, other: Schema) -> list[str]:
        """Names of the frozen parameters that differ, if both schemas list any."""
        if not self.frozen or not other.frozen:
            return []
        network, here = dict(self.frozen), dict(other.frozen)
        return [name for name in {**network, **here} if network.get(name) != here.get(name)]

    def _frozen_difference(self, other: Schema) -> str:
        network, here, apart = dict(self.frozen), dict(other.frozen), self._frozen_apart(other)
        if not apart:
            return ""
        first = apart[0]
        where = "only here" if first not in network else "only in the network" if first not in here else "other values"
        rest = "; the others are equal" if network.keys() == here.keys() and len(apart) < len(here) else ""
        return f"frozen parameter {first}: {where}, and so {len(apart)} of {len(network.keys() | here.keys())}{rest}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"Schema({len(self.entries)} tensors, {self.size} parameters, {self.digest.hex()[:8]})"


def _next_offset(before: Entry | None, kind: Kind) -> int:
    if before is None:
        return 0
    if before.kind == kind:
        return before.stop
    return -(-before.stop // ALIGNMENT) * ALIGNMENT


def _check(entries: tuple[Entry, ...]) -> None:
    if not 1 <= len(entries) <= MAX_ENTRIES:
        raise ValueError(f"{len(entries)} tensors; a schema has 1 to {MAX_ENTRIES}")
    names = [name for entry in entries for name in (entry.name, *entry.also)]
    if len(set(names)) != len(names):
        raise ValueError("two tensors have the same name")
    before: Entry | None = None
    for entry in entries:
        if before is not None and (before.kind, entry.kind) == ("buffer", "parameter"):
            raise ValueError(f"parameter {entry.name} stands behind buffers")
        if entry.offset != _next_offset(before, entry.kind):
            raise ValueError(f"{entry.name} stands at {entry.offset}, not at {_next_offset(before, entry.kind)}")
        if min(entry.shape, default=1) < 1 or entry.stop > MAX_SIZE:
            raise ValueError(f"{entry.name}: shape {entry.shape}, or more than {MAX_SIZE} parameters in all")
        before = entry


def chunk_parameters(size: int) -> int:
    """Parameters per chunk of a model of `size` parameters: size / 16, rounded up to 256, within 8,192 and `MOST`."""
    sixteenth = -(-size // _CHUNKS)
    return min(max(-(-sixteenth // ALIGNMENT) * ALIGNMENT, _LEAST), MOST)


def chunk_spans(size: int, trainable: int, width: int) -> list[slice]:
    """The chunks of a model: parameters first, then buffers. No chunk holds both.

    Args:
        size: elements of the flat vector.
        trainable: offset of the first buffer.
        width: most parameters of a chunk; see `chunk_parameters`.
    """
    return [
        slice(start, min(start + width, stop))
        for first, stop in ((0, trainable), (trainable, size))
        for start in range(first, stop, width)
    ]
