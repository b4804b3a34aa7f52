"""What compressors share in reading and writing payloads: parts of stated lengths, and bfloat16 numbers.

bfloat16 and not fp16 for levels, scales and values: it costs the same two bytes and has the range of fp32, while a
residual of a fine learning rate is all denormals to fp16 (below 6e-8 it is zero). Nothing here may know a format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import BLOCK, Buffer, PayloadError, Vector
from gossipdp.codecs.increments.kernels import LARGEST

__all__ = ["bfloat16", "joined", "numbers", "only_zero_bits", "parts", "starts"]


def joined(*arrays: NDArray[Any]) -> memoryview:
    """The bytes of contiguous arrays, one after the other, copied once."""
    payload = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
    payload.flags.writeable = False
    return payload.data


def parts(payload: Buffer, *lengths: int) -> list[NDArray[np.uint8]]:
    """Read-only views of the parts of `payload`, which has just these lengths. Raises PayloadError."""
    data = memoryview(payload)
    if data.nbytes != sum(lengths):
        raise PayloadError(f"{data.nbytes} bytes, wanted {sum(lengths)}")
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    ends = np.cumsum(lengths)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; cut to +-2^100, what is not a number to zero, never -0."""
    kept = np.where(np.isnan(values), 0.0, np.clip(values, -LARGEST, LARGEST)).astype(np.float32)
    bits = kept.view(np.uint32)
    bits = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(bits == 0x8000, 0, bits).astype("<u2")


def numbers(part: NDArray[np.uint8], *, signed: bool) -> Vector:
    """The fp32 values of a part of bfloat16 numbers. Raises PayloadError if one is not finite, past 2^100, or -0."""
    bits = part.view("<u2").astype(np.uint32)
    values: Vector = (bits << np.uint32(16)).view(np.float32)
    if not (np.abs(values) <= LARGEST).all():
        raise PayloadError("a number that is not finite, or past 2^100")
    if (bits == 0x8000).any() or (not signed and (values < 0.0).any()):
        raise PayloadError("a number with a sign it may not have")
    return values


def starts(size: int) -> NDArray[np.int64]:
    """Where the blocks of `size` parameters begin."""
    return np.arange(0, size, BLOCK)


def only_zero_bits(part: NDArray[np.uint8], bits: int) -> None:
    """Raises PayloadError unless what is left of the last byte after `bits` bits is zero: one value, one encoding."""
    if bits % 8 and part[-1] >> (bits % 8):
        raise PayloadError("padding that is not zero")
