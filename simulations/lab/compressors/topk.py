"""Chunked top-k: the k largest of every 4096 parameters, each with a 12-bit index, a sign and one of two levels.

    c = Q2(TopK(x))    per chunk of 4096; |c| is the mean of the larger or of the smaller part of the chosen |x|

SparseLoCo (arXiv 2508.15706). The two levels are the two-means of the chosen magnitudes; their
error is within 1 % of the least one. Of equal magnitudes the first is chosen, so the same vector gives the same bytes.
The length of a payload depends on the size alone: levels of all chunks, then codes of all chunks (fields as in
`kernels`). A short last chunk gets its share of k, rounded up.

Nothing here may loop over parameters or hold state: `error_feedback` keeps what is left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from simulations.lab.compressors import kernels
from simulations.lab.compressors.kernels import CHUNK, FIELD, sealed
from simulations.lab.compressors.payloads import joined, numbers, parts

__all__ = ["TopK"]

LEVELS: Final = 4
"""bytes of the two levels of a chunk"""


class TopK:
    """`topk<k>`: the k largest of every 4096.

    Args:
        k: 1 to 4096.

    Raises:
        ValueError: k is out of range.
    """

    def __init__(self, k: int) -> None:
        if not 1 <= k <= CHUNK:
            raise ValueError(f"top {k} of {CHUNK}")
        self.name = f"topk{k}"
        self.k = k
        # One level keeps ||top||_1^2 / k >= ||top||_2^2 / k >= ||x||^2 / 4096. Two levels keep no less, and bfloat16
        # costs 1 %. A larger k mostly keeps far more, but cannot promise more: a chunk may have only one value.
        self.contraction = 0.99 / CHUNK

    def most_bytes(self, size: int) -> int:
        counts = self._counts(size)
        return LEVELS * len(counts) + int(code_bytes(counts).sum())

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        levels, codes = choose(values, self._counts(len(values)))
        return joined(levels, codes)

    def decode(self, payload: Buffer, size: int) -> Vector:
        counts = self._counts(size)
        levels, codes = parts(payload, LEVELS * len(counts), int(code_bytes(counts).sum()))
        return place(levels, codes, counts, size)

    def _counts(self, size: int) -> NDArray[np.int64]:
        counts = np.full(-(-size // CHUNK), self.k, np.int64)
        if size % CHUNK:
            counts[-1] = -(-self.k * (size % CHUNK) // CHUNK)
        return counts


def code_bytes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each chunk's codes, for `counts` sent parameters."""
    return -(-counts * FIELD // 8)


def choose(values: Vector, counts: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """(levels, codes) of the counts[c] largest magnitudes of each chunk c of `values`."""
    sizes = code_bytes(counts)
    levels, codes = np.empty((len(counts), 2), np.uint16), np.empty(int(sizes.sum()), np.uint8)
    values = sealed(values)
    offsets = sealed(np.cumsum(sizes) - sizes)
    kernels.choose_chunks(values, values.view(np.uint32), sealed(counts), offsets, levels, codes)
    return levels.astype("<u2", copy=False), codes


def place(levels: NDArray[np.uint8], codes: NDArray[np.uint8], counts: NDArray[np.int64], size: int) -> Vector:
    """The inverse of `choose`: the chosen values in a vector of zeros.

    Raises:
        PayloadError: `choose` cannot have written this.
    """
    pairs = numbers(levels).reshape(-1, 2)
    sizes = code_bytes(counts)
    values = np.zeros(size, np.float32)
    sound = kernels.place_chunks(sealed(codes), sealed(counts), sealed(np.cumsum(sizes) - sizes), sealed(pairs), values)
    if sound < len(counts):
        raise PayloadError(f"no encoder writes the codes of chunk {sound}")
    return values
