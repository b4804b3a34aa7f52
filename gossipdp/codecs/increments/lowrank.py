"""Low rank: each matrix of the model as the product of two thin ones, found by power iteration.

    P = orth(M Q),  Q <- M^T P, twice;   M' = P Q^T        PowerSGD (Vogels et al. 2019, arXiv 1905.13727)

PowerSGD starts from the Q of the step before. A compressor has no state, so this one draws Q from the seed and iterates
twice. It rounds P to bfloat16 before it computes the last Q. Vectors, and matrices that two factors would not make
smaller, travel as bfloat16.

The encoder uses BLAS and LAPACK, so two kinds of machine may send different factors of the same matrix. The decoder
adds products in the order of the rank, and every receiver gets the same bits. The share of ||x|| that is kept depends
on the spectrum. For every x the error is at most ||x||, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.increments.kernels import LARGEST
from gossipdp.codecs.increments.payloads import bfloat16, joined, numbers, parts

__all__ = ["LowRank"]

ITERATIONS: Final = 2
"""power iterations"""


class LowRank:
    """`lowrank<rank>`.

    Args:
        rank: 1 to 64.
        shapes: shapes of the tensors in the flat vector, in order. Dimensions after the first are flattened into one.
            Without shapes the whole vector becomes one matrix that is as nearly square as possible.

    Raises:
        ValueError: the rank is out of range.
    """

    contraction = 0.0

    def __init__(self, rank: int, shapes: Sequence[tuple[int, ...]] | None = None) -> None:
        if not 1 <= rank <= 64:
            raise ValueError(f"rank {rank}, allowed 1 to 64")
        self.name = f"lowrank{rank}"
        self.rank, self.shapes = rank, shapes

    def most_bytes(self, size: int) -> int:
        return 2 * sum(self._numbers(rows, columns) for rows, columns in self._matrices(size))

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        rng = np.random.default_rng(seed)
        payload, at = [np.zeros(0, np.uint16)], 0
        for rows, columns in self._matrices(len(values)):
            part = values[at : at + rows * columns]
            at += rows * columns
            if self._thin(rows, columns):
                payload += _factors(part.reshape(rows, columns), self.rank, rng)
            else:
                payload.append(bfloat16(part))
        return joined(*payload)

    def decode(self, payload: Buffer, size: int) -> Vector:
        (data,) = parts(payload, self.most_bytes(size))
        values, at, read = np.empty(size, np.float32), 0, 0
        for rows, columns in self._matrices(size):
            here = numbers(data[read : read + 2 * self._numbers(rows, columns)], signed=True)
            matrix = values[at : at + rows * columns]
            at, read = at + rows * columns, read + 2 * len(here)
            if self._thin(rows, columns):
                p, q = here[: rows * self.rank].reshape(-1, rows), here[rows * self.rank :].reshape(-1, columns)
                _multiply(p, q, matrix.reshape(rows, columns))
            else:
                matrix[:] = here
        return values

    def _matrices(self, size: int) -> Iterator[tuple[int, int]]:
        """(rows, columns) of each matrix in the flat vector. A vector is one row."""
        if self.shapes is None:
            if size:
                rows = math.isqrt(size)
                yield rows, size // rows
                yield 1, size % rows
            return
        if sum(map(math.prod, self.shapes)) != size:
            raise ValueError(f"{size} parameters, but the shapes have {sum(map(math.prod, self.shapes))}")
        for shape in self.shapes:
            rows = shape[0] if len(shape) > 1 else 1
            yield rows, math.prod(shape) // rows if rows else 0

    def _thin(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) < rows * columns

    def _numbers(self, rows: int, columns: int) -> int:
        return self.rank * (rows + columns) if self._thin(rows, columns) else rows * columns


def _factors(matrix: Vector, rank: int, rng: np.random.Generator) -> list[NDArray[np.uint16]]:
    """P^T and Q^T as bfloat16."""
    # Scaled by a power of two, so that nothing overflows and denormals become normal.
    largest = min(float(np.abs(matrix).max()), float(LARGEST))
    exponent = math.frexp(largest)[1]
    m = np.ldexp(np.clip(matrix, -LARGEST, LARGEST), -exponent)
    q = rng.standard_normal((matrix.shape[1], rank), np.float32)
    for _ in range(ITERATIONS):
        p = np.linalg.qr(m @ q)[0]
        q = m.T @ p
    sent = bfloat16(p)
    p = (sent.astype(np.uint32) << np.uint32(16)).view(np.float32)
    # In fp64, because a length near 2^100 may exceed fp32 before it is cut.
    return [np.ascontiguousarray(sent.T), bfloat16(np.ldexp((p.T @ m).astype(np.float64), exponent))]


def _multiply(p: Vector, q: Vector, matrix: Vector) -> None:
    """matrix = sum over the rank of p_r q_r^T, in this order, cut to +-2^100."""
    # A column of length 1 has no entry beyond 1. With the bound of `numbers` no sum overflows.
    if (np.abs(p) > 1.0).any():
        raise PayloadError("a column has an entry above 1")
    np.multiply(p[0][:, None], q[0], out=matrix)
    for left, right in zip(p[1:], q[1:], strict=True):
        matrix += left[:, None] * right
    np.clip(matrix, -LARGEST, LARGEST, out=matrix)
