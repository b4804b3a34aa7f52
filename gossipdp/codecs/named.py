"""Named tensors as exact bytes: the format of safetensors, parsed without trust.

    u64 length of the header | JSON {name: {"dtype", "shape", "data_offsets"}} | the tensors' bytes, end to end

It carries tensors beside the flat vector that are not averaged. Source: https://github.com/huggingface/safetensors. It
adds one dtype, C128. Nothing here may know a model, torch or a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from gossipdp.codecs.base import Buffer, PayloadError

__all__ = ["BYTES", "Named", "header", "unpack"]

BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
"""bytes of one element, by dtype"""
MOST_HEADER: Final = 16 << 20
"""longest header, bytes"""
MOST_DIMENSIONS: Final = 16
"""most dimensions of a tensor"""


class Named(NamedTuple):
    """One tensor; `data` holds its row-major elements, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


def header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """The header of tensors with these names, dtypes and shapes, padded to 8 bytes."""
    entries: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + BYTES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def unpack(data: Buffer) -> dict[str, Named]:
    """The tensors in `data` by name, without a copy. Empty data gives no tensors.

    Raises:
        PayloadError: the bytes are malformed.
    """
    view = memoryview(data).cast("B")
    if not view.nbytes:
        return {}
    length = int.from_bytes(view[:8], "little")
    if length > min(MOST_HEADER, view.nbytes - 8):
        raise PayloadError(f"a header of {length} bytes in a payload of {view.nbytes}")
    try:
        entries = json.loads(bytes(view[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the header is not JSON: {error!s:.80}") from None
    if not isinstance(entries, dict):
        raise PayloadError("the header is not a JSON object")
    body, end, found = view[8 + length :], 0, dict[str, Named]()
    for name, entry in entries.items():
        dtype, shape, begin, end = _entry(name, entry, end)
        found[name] = Named(name, dtype, shape, body[begin:end])
    if end != body.nbytes:
        raise PayloadError(f"{body.nbytes} bytes of tensors, {end} announced")
    return found


def _entry(name: str, entry: Any, begin: int) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, first byte, end) of a tensor whose bytes must start at `begin`."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    sound = isinstance(dtype, str) and dtype in BYTES and isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS
    if not sound or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape or ()):
        raise PayloadError(f"tensor {name!r:.80} has no known dtype and shape")
    assert isinstance(dtype, str) and shape is not None
    end = begin + BYTES[dtype] * math.prod(shape)
    if fields.get("data_offsets") != [begin, end]:
        raise PayloadError(f"tensor {name!r:.80} does not follow the tensor before it")
    return dtype, tuple(shape), begin, end
