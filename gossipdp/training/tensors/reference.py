"""What buffers are told relative to: the values that the network's founder had (`protocol.carried_state`).

A buffer element stands in the vector as its difference to the reference. A constant is 0 there, whatever it is: no
norm, codec or rounding can touch it, and where 0 is loaded the reference's own bits are put back. An element whose
reference is not finite, or beyond 2^100, is 0 too: it is not averaged, and travels as `beside` says. An element that
has become infinite or NaN since is NaN: the daemon refuses that snapshot. Nothing here may know the daemon.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gossipdp.algorithms.ledger import LARGEST, state_hash
from gossipdp.codecs import named
from gossipdp.codecs.base import PayloadError
from gossipdp.protocol.carried_state import PIECE, reference_digest
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_CARRIED

__all__ = ["NAMES", "Reference", "as_bytes", "bytes_of", "tensor_of"]

log = logging.getLogger("gossipdp.training")

_ALL: Final[dict[str, str]] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "C128": "complex128", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
NAMES: Final[dict[torch.dtype, str]] = {
    getattr(torch, dtype): name for name, dtype in _ALL.items() if hasattr(torch, dtype)
}
"""torch's dtypes as `codecs.named` calls them"""
_DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}


class Reference:
    """Of the buffers among `tensors`, which are the schema's; none until `take` or `adopt`: then differences are to 0.

    Where tensors are sharded, or the reference would be longer than `MOST_CARRIED` bytes, there is none.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._values: dict[int, Tensor] = {}
        """by tensor, flat"""
        self.data: Buffer = b""
        self.digest = b""

    @torch.no_grad()
    def take(self, tensors: Sequence[Tensor]) -> None:
        """What the buffers hold now is the reference."""
        buffers = {i: tensors[i] for i, entry in enumerate(self._schema.entries) if entry.kind == "buffer"}
        size = sum(each.numel() * each.element_size() for each in buffers.values())
        if size > MOST_CARRIED // 2:
            log.warning("buffers of %.1f GB are averaged as they are, without a reference", size / 1e9)
        elif buffers and all(type(each) is Tensor for each in buffers.values()):
            entries = self._schema.entries
            head = named.header((entries[i].name, NAMES[each.dtype], tuple(each.shape)) for i, each in buffers.items())
            self._set(b"".join([head, *(bytes_of(each) for each in buffers.values())]))
            self._values = {index: each.detach().reshape(-1).clone() for index, each in buffers.items()}

    @torch.no_grad()
    def adopt(self, data: Buffer) -> list[int]:
        """`data` is the reference from now on. Returns the tensors whose values must become it, or an empty list."""
        before, after = bytes(self.data), bytes(data)
        if before == after:
            return []
        self._set(data)
        try:
            found = named.unpack(data)
        except PayloadError as error:
            log.warning("the network's reference of buffers cannot be read: %s", error)
            found = {}
        self._values = {}
        for index, entry in enumerate(self._schema.entries):
            value = found.get(entry.name)
            tensor = None if value is None or value.shape != entry.shape else tensor_of(value)
            if entry.kind == "buffer" and tensor is not None:
                self._values[index] = tensor.reshape(-1)
        return [*self._values]

    def value(self, index: int) -> Tensor | None:
        """The reference of a tensor, flat, if there is one."""
        return self._values.get(index)

    def difference(self, index: int, first: int, values: Tensor, kept: Tensor | None) -> Tensor:
        """Elements `first` on of tensor `index` as the vector has them, from their values and what rounding kept."""
        wide = values.to(_wide(values))
        if kept is not None:
            wide = wide + kept
        usable = wide.abs() <= LARGEST
        otherwise = torch.zeros_like(wide)
        if (base := self._part(index, first, values)) is not None:
            bounded = base.abs() <= LARGEST
            otherwise[bounded & ~values.isfinite()] = torch.nan
            usable &= bounded
            wide = wide - base
        return torch.where(usable, wide, otherwise).float()

    def absolute(self, index: int, first: int, part: Tensor, like: Tensor) -> Tensor:
        """The inverse: the values of elements `first` on that the vector has as `part`, as wide as `like` needs."""
        base = self._part(index, first, like)
        if base is None:
            return part.to(_wide(like))
        return torch.where((part == 0.0) | ~(base.abs() <= LARGEST), base, base + part)

    def _part(self, index: int, first: int, like: Tensor) -> Tensor | None:
        values = self._values.get(index)
        if values is None:
            return None
        if values.device != like.device:
            values = self._values[index] = values.to(like.device)
        return values[first : first + like.numel()].to(_wide(like))

    def _set(self, data: Buffer) -> None:
        self.data = data
        view = memoryview(data).cast("B")
        hashes = (state_hash(view[start : start + PIECE]) for start in range(0, view.nbytes, PIECE))
        self.digest = reference_digest(b"".join(hashes))


def bytes_of(tensor: Tensor) -> memoryview:
    """The elements of `tensor` in row-major order, as bytes on the CPU."""
    flat = as_bytes(tensor).cpu()
    return flat.numpy().data if flat.numel() else memoryview(b"")


def as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def tensor_of(value: named.Named) -> Tensor | None:
    """A new tensor on the CPU; None if this torch has no such dtype."""
    dtype = _DTYPES.get(value.dtype)
    if dtype is None or not memoryview(value.data).nbytes:
        return None
    return torch.frombuffer(bytearray(value.data), dtype=torch.uint8).view(dtype).view(value.shape)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
