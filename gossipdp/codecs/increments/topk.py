"""Chunked top-k: the k largest of every 4096 parameters, each a 12-bit index, a sign and one of two levels.

    c = Q2(TopK(x))    per chunk of 4096; |c| is the mean of the larger or of the smaller part of the chosen |x|

SparseLoCo (arXiv 2508.15706; algorithms section 4). The two levels are the two-means of the chosen magnitudes, with an
error within 1 % of the least that two levels allow. Of equal magnitudes the first is chosen, so that the same vector
gives the same bytes. A payload has one length for a size: levels of all chunks, then codes of all chunks (fields as in
`kernels_sparse`). The last chunk, if short, gets its share of k, rounded up.

Nothing here may hold a loop over parameters, or state: what was left out is `error_feedback`'s to keep.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.increments import kernels as kernels_sparse
from gossipdp.codecs.increments.kernels import CHUNK, FIELD, sealed
from gossipdp.codecs.increments.payloads import joined, numbers, parts

__all__ = ["TopK", "choose", "code_bytes", "place"]

LEVELS: Final = 4
"""bytes of the two levels of a chunk"""


class TopK:
    """`topk<k>`: k of 4096, 1 to 4096."""

    def __init__(self, k: int) -> None:
        if not 1 <= k <= CHUNK:
            raise ValueError(f"top {k} of {CHUNK}")
        self.name = f"topk{k}"
        self.k = k
        # One level keeps ||top||_1^2 / k >= ||top||_2^2 / k >= ||x||^2 / 4096, two keep no less; 1 % for bfloat16. A
        # larger k keeps far more as a rule, and promises no more: one value of a chunk may be all there is.
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
    """Bytes of the codes of chunks of which `counts` parameters are sent."""
    return -(-counts * FIELD // 8)


def choose(values: Vector, counts: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """(levels, codes) of the counts[c] largest of each chunk c of `values`."""
    sizes = code_bytes(counts)
    levels, codes = np.empty((len(counts), 2), np.uint16), np.empty(int(sizes.sum()), np.uint8)
    values = sealed(values)
    offsets = sealed(np.cumsum(sizes) - sizes)
    kernels_sparse.choose_chunks(values, values.view(np.uint32), sealed(counts), offsets, levels, codes)
    return levels.astype("<u2", copy=False), codes


def place(levels: NDArray[np.uint8], codes: NDArray[np.uint8], counts: NDArray[np.int64], size: int) -> Vector:
    """A vector of zeros, but for what was chosen. Raises PayloadError unless `choose` could have written it."""
    pairs = numbers(levels, signed=False).reshape(-1, 2)
    sizes = code_bytes(counts)
    values = np.zeros(size, np.float32)
    sound = kernels_sparse.place_chunks(
        sealed(codes), sealed(counts), sealed(np.cumsum(sizes) - sizes), sealed(pairs), values
    )
    if sound < len(counts):
        raise PayloadError(f"codes of chunk {sound} that no encoder writes")
    return values
