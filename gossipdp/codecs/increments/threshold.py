"""Threshold: all values above a multiple of the vector's RMS, but at most `most` of each 4096.

    |x_i| >= min(multiple * RMS(x), max |x|)        Strom 2015; Aji & Heafield 2017, arXiv 1704.05021

Top-k gives every chunk the same share. Here a layer that moves sends more than one that rests, so the length of a
payload varies: counts of all chunks, two levels of each chunk that sends, then codes as in `topk`. The largest value is
always sent. Nothing else is promised, because a flat vector has no values that stand out.

Nothing here may loop over parameters or hold state.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.increments.kernels import CHUNK
from gossipdp.codecs.increments.payloads import joined
from gossipdp.codecs.increments.topk import LEVELS, choose, code_bytes, place

__all__ = ["Threshold"]

COUNT_BYTES: Final = 2
"""bytes of a chunk's count"""


class Threshold:
    """`threshold<multiple>`.

    Args:
        multiple: threshold in units of the RMS, above 0.
        most: most parameters sent of a chunk of 4096.

    Raises:
        ValueError: an argument is out of range.
    """

    contraction = 0.0

    def __init__(self, multiple: float, most: int = 256) -> None:
        if not multiple > 0.0 or not 1 <= most <= CHUNK:
            raise ValueError(f"multiple {multiple}, at most {most} of {CHUNK}")
        self.name = f"threshold{multiple:g}"
        self.multiple, self.most = multiple, most

    def most_bytes(self, size: int) -> int:
        most = self._most(size)
        return (COUNT_BYTES + LEVELS) * len(most) + int(code_bytes(most).sum())

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        if not len(values):
            return b""
        magnitudes = np.abs(values)
        rms = math.sqrt(np.mean(np.square(values, dtype=np.float64)))
        bound = min(np.float32(self.multiple * rms), magnitudes.max())
        above = (magnitudes >= bound) & (magnitudes > 0.0)
        counts = np.add.reduceat(above, np.arange(0, len(values), CHUNK), dtype=np.int64)
        counts = np.minimum(counts, self._most(len(values)))
        levels, codes = choose(values, counts)
        return joined(counts.astype("<u2"), levels[counts > 0], codes)

    def decode(self, payload: Buffer, size: int) -> Vector:
        most = self._most(size)
        head = COUNT_BYTES * len(most)
        data = np.frombuffer(payload, np.uint8)
        if len(data) < head:
            raise PayloadError(f"{len(data)} bytes, at least {head} wanted")
        counts = data[:head].view("<u2").astype(np.int64)
        if (counts > most).any():
            raise PayloadError("a chunk sends more parameters than allowed")
        sends = counts > 0
        pairs = head + LEVELS * int(sends.sum())
        if len(data) != pairs + int(code_bytes(counts).sum()):
            raise PayloadError(f"{len(data)} bytes do not match the counts")
        levels = np.zeros((len(most), LEVELS), np.uint8)
        levels[sends] = data[head:pairs].reshape(-1, LEVELS)
        return place(levels.reshape(-1), data[pairs:], counts, size)

    def _most(self, size: int) -> NDArray[np.int64]:
        most = np.full(-(-size // CHUNK), self.most, np.int64)
        if size % CHUNK:
            most[-1] = min(self.most, size % CHUNK)
        return most
