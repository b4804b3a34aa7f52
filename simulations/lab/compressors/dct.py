"""DCT top-k: the k largest coefficients of every 4096 parameters under a cosine transform, as DeMo extracts them.

    C = B X B^T,  X = 64 x 64 consecutive parameters;  c = B^T Q2(TopK(C)) B       DeMo (arXiv 2411.19870)

B is the orthonormal DCT-II of 64 points, so the error equals that of `topk` on C. A few coefficients move every
parameter of a chunk a little. DeMo's tiles come from a matrix; these come from the flat vector, and line up only with
rows whose width 64 divides. Zeros fill a short last chunk, which costs as much as a whole one.

Every receiver gets the same bits. Sums have a fixed order, and B is the same table for any libm: no cosine is close to
a rounding boundary of fp32 (a test checks it). Nothing here may hold state.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gossipdp.codecs.base import Buffer, Vector
from simulations.lab.compressors import kernels
from simulations.lab.compressors.kernels import CHUNK, LARGEST, sealed
from simulations.lab.compressors.topk import TopK

__all__ = ["COSINES", "DCT"]

SIDE: Final = 64
"""side of the square that a chunk of 4096 forms"""


def _cosines() -> Vector:
    """B, shape (64, 64): row k is sqrt(2/64) cos(pi (2 i + 1) k / 128), and row 0 is 1/8."""
    turns = np.outer(np.arange(SIDE), 2 * np.arange(SIDE) + 1) % (4 * SIDE)
    rows = np.cos(np.pi / (2 * SIDE) * turns) * np.sqrt(2.0 / SIDE)
    rows[0] = 1.0 / 8.0
    basis: Vector = rows.astype(np.float32)
    return basis


COSINES: Final = sealed(_cosines())
_TRANSPOSED: Final = sealed(COSINES.T)


class DCT:
    """`dct<k>`: the k largest coefficients of every 4096."""

    def __init__(self, k: int) -> None:
        self.name = f"dct{k}"
        self._topk = TopK(k)
        self.contraction = self._topk.contraction

    def most_bytes(self, size: int) -> int:
        return self._topk.most_bytes(_padded(size))

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        chunks = np.zeros(_padded(len(values)), np.float32)
        np.clip(values, -LARGEST, LARGEST, out=chunks[: len(values)])
        return self._topk.encode(_rotated(chunks, COSINES, _TRANSPOSED), seed=seed)

    def decode(self, payload: Buffer, size: int) -> Vector:
        coefficients = self._topk.decode(payload, _padded(size))
        return np.clip(_rotated(coefficients, _TRANSPOSED, COSINES)[:size], -LARGEST, LARGEST)


def _padded(size: int) -> int:
    return -(-size // CHUNK) * CHUNK


def _rotated(values: Vector, left: Vector, right: Vector) -> Vector:
    rotated = np.empty_like(values)
    shape = (-1, SIDE, SIDE)
    kernels.rotate(sealed(values.reshape(shape)), left, right, rotated.reshape(shape))
    return rotated
