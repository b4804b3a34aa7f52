"""Shared parts of payloads: sections of stated lengths, and bfloat16 numbers.

Levels, scales and values are bfloat16, not fp16. It costs the same two bytes and has the range of fp32. The residual of
a fine learning rate is denormal in fp16, and zero below 6e-8. Nothing here may know a format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.blocks import BLOCK
from simulations.lab.compressors.kernels import LARGEST

__all__ = ["bfloat16", "joined", "numbers", "only_zero_bits", "parts", "starts"]


def joined(*arrays: NDArray[Any]) -> memoryview:
    """The bytes of contiguous arrays, one after the other, copied once."""
    payload = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
    payload.flags.writeable = False
    return payload.data


def parts(payload: Buffer, *lengths: int) -> list[NDArray[np.uint8]]:
    """Read-only views of the sections of `payload`. Raises PayloadError unless it has exactly these lengths."""
    data = memoryview(payload)
    if data.nbytes != sum(lengths):
        raise PayloadError(f"{data.nbytes} bytes, wanted {sum(lengths)}")
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    ends = np.cumsum(lengths)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even, cut to +-2^100. NaN and -0 become zero."""
    kept = np.where(np.isnan(values), 0.0, np.clip(values, -LARGEST, LARGEST)).astype(np.float32)
    bits = kept.view(np.uint32)
    bits = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(bits == 0x8000, 0, bits).astype("<u2")


def numbers(part: NDArray[np.uint8]) -> Vector:
    """The fp32 values of a section of bfloat16 numbers.

    Raises:
        PayloadError: a number is not finite, past 2^100, or has a sign.
    """
    bits = part.view("<u2").astype(np.uint32)
    values: Vector = (bits << np.uint32(16)).view(np.float32)
    if not (np.abs(values) <= LARGEST).all():
        raise PayloadError("a number is not finite, or past 2^100")
    if (bits >> np.uint32(15)).any():
        raise PayloadError("a number has a sign")
    return values


def starts(size: int) -> NDArray[np.int64]:
    """First index of each block of 256 in `size` parameters."""
    return np.arange(0, size, BLOCK)


def only_zero_bits(part: NDArray[np.uint8], bits: int) -> None:
    """Raise PayloadError unless the last byte is zero after `bits` bits: a value has one encoding."""
    if bits % 8 and part[-1] >> (bits % 8):
        raise PayloadError("the padding is not zero")
