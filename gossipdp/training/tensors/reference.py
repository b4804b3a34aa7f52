"""The reference of buffers: the values that the network's founder had (`protocol.carried_state`).

The vector holds each buffer element as its difference to the reference. A constant is 0 there: no norm, codec or
rounding changes it, and loading 0 puts the reference's own bits back. An element whose reference is not finite, or
beyond 2^100, is 0 too: it is not averaged, and travels in the carried state (see `carried`). An element that has become
infinite or NaN since is NaN here; `Layout.read` mends it first. Nothing here knows the daemon.
"""

from __future__ import annotations

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
from gossipdp.training.messages import log
from gossipdp.training.tensors.arithmetic import widened

__all__ = ["NAMES", "Reference", "as_bytes", "bytes_of", "tensor_of"]

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
    """The reference of a schema's buffers. Until `take` or `adopt`, differences are to 0.

    There is no reference where buffers are sharded, or where it would be longer than `MOST_CARRIED` / 2 bytes.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._values: dict[int, Tensor] = {}
        """by index of the tensor, flat"""
        self.data: Buffer = b""
        """as it travels (`codecs.named`)"""
        self.digest = b""
        """as the schema names it; b"" for none"""

    @torch.no_grad()
    def take(self, tensors: Sequence[Tensor]) -> None:
        """Reference := the buffers' values now.

        Args:
            tensors: the schema's, in its order.
        """
        buffers = {i: tensors[i] for i, entry in enumerate(self._schema.entries) if entry.kind == "buffer"}
        size = sum(each.numel() * each.element_size() for each in buffers.values())
        if size > MOST_CARRIED // 2:
            log.warning("%.1f GB of buffers are averaged without a reference", size / 1e9)
        elif buffers and all(type(each) is Tensor for each in buffers.values()):
            entries = self._schema.entries
            head = named.header((entries[i].name, NAMES[each.dtype], tuple(each.shape)) for i, each in buffers.items())
            self._set(b"".join([head, *(bytes_of(each) for each in buffers.values())]))
            self._values = {index: each.detach().reshape(-1).clone() for index, each in buffers.items()}

    @torch.no_grad()
    def adopt(self, data: Buffer) -> list[int]:
        """Reference := data. Returns the indices of the tensors that must take its values; none if it is the same."""
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
        """The reference of a tensor, flat; None if it has none."""
        return self._values.get(index)

    def difference(self, index: int, first: int, values: Tensor, kept: Tensor | None) -> Tensor:
        """The vector's values of elements `first` on of tensor `index`, from their own values and residuals."""
        wide = widened(values, kept)
        usable = wide.abs() <= LARGEST
        otherwise = torch.zeros_like(wide)
        if (base := self._part(index, first, values)) is not None:
            bounded = base.abs() <= LARGEST
            otherwise[bounded & ~values.isfinite()] = torch.nan
            usable &= bounded
            wide = wide - base
        return torch.where(usable, wide, otherwise).float()

    def absolute(self, index: int, first: int, part: Tensor, like: Tensor) -> Tensor:
        """The inverse of `difference`: the elements whose values in the vector are `part`.

        Args:
            like: the elements now; they decide device and width.
        """
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
    """A copy of the elements of `tensor` in row-major order, as bytes on the CPU."""
    # numpy() keeps torch from resizing a storage for ever, and this one is the script's.
    flat = as_bytes(tensor).to("cpu", copy=True)
    return flat.numpy().data if flat.numel() else memoryview(b"")


def as_bytes(tensor: Tensor) -> Tensor:
    """The elements of `tensor` in row-major order, as uint8 on its device."""
    flat = tensor.detach().contiguous().reshape(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def tensor_of(value: named.Named) -> Tensor | None:
    """A new tensor on the CPU. None if this torch has no such dtype, or no room for such sizes of an empty tensor."""
    dtype, data = _DTYPES.get(value.dtype), bytearray(value.data)
    if dtype is None:
        return None
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    try:
        return flat.view(dtype).view(value.shape)
    except RuntimeError:
        return None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
