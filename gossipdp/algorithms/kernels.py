"""The ledger's loops over parameters, compiled by numba: one pass over a chunk each, without the GIL.

numpy would pass over memory once for each operation. All arithmetic is fp32 in the order of the equations, so the bits
are those of numpy. Norms are summed in fp64. See `gossipdp.codecs.compiled` for the rules of kernels.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.compiled import kernel

__all__ = ["block_maxima", "largest", "outer_step", "to_bfloat16", "warm_up"]

_LANES: Final = 16
"""partial sums of a norm"""


@kernel
def largest(values: Vector) -> np.float32:
    """Largest |value|. NaN counts as larger than infinity, and is returned as NaN."""
    bits, found = values.view(np.uint32), np.empty(1, np.uint32)
    most = np.uint32(0)
    for k in range(len(bits)):
        size = np.uint32(bits[k] & np.uint32(0x7FFF_FFFF))
        most = most if most > size else size
    found[0] = most
    return np.float32(found.view(np.float32)[0])


@kernel
def block_maxima(values: Vector, starts: NDArray[np.int64], maxima: Vector) -> None:
    """Largest |value| of each block.

    Args:
        starts: first parameter of each block, then n; shape (blocks + 1,).
        maxima: out, shape (blocks,).
    """
    bits, out = values.view(np.uint32), maxima.view(np.uint32)
    for block in range(len(out)):
        part = bits[starts[block] : starts[block + 1]]
        most = np.uint32(0)
        for k in range(len(part)):
            size = np.uint32(part[k] & np.uint32(0x7FFF_FFFF))
            most = most if most > size else size
        out[block] = most


@kernel
def to_bfloat16(values: Vector, out: NDArray[np.uint16]) -> None:
    """Round to bfloat16, nearest, ties to even. `values` must be finite."""
    bits = values.view(np.uint32)
    for k in range(len(bits)):
        odd = np.uint32(np.uint32(bits[k] >> np.uint32(16)) & np.uint32(1))
        out[k] = np.uint16(np.uint32(np.uint32(bits[k] + np.uint32(0x7FFF)) + odd) >> np.uint32(16))


@kernel
def outer_step(
    x: Vector,
    late: Vector,
    a: Vector,
    v: Vector,
    pending: Vector,
    fresh: bool,
    stays: np.float32,
    mu: np.float32,
    pull: np.float32,
    starts: NDArray[np.int64],
    maxima: Vector,
) -> tuple[float, float, bool]:
    """The outer step of `Ledger.outer_step` on one chunk of n parameters.

    Args:
        x: the snapshot, shape (n,).
        late: corrections that are not inside x, shape (n,), or empty.
        a, v, pending: changed in place, shape (n,) each.
        fresh: what `pending` holds does not count.
        stays: 1 - alpha. With 0 and mu 0 there is no correction, and `pending` stays as it is.
        mu: momentum.
        pull: alpha mu.
        starts: first parameter of each block, then n; shape (blocks + 1,). No block has more than 256.
        maxima: out, largest |m| of each block, shape (blocks,).

    Returns:
        ||D||^2, ||m||^2, and whether a correction was not zero.
    """
    now, d, c, m = (
        np.empty(256, np.float32),
        np.empty(256, np.float32),
        np.empty(256, np.float32),
        np.empty(256, np.float32),
    )
    d2, m2, bits = np.zeros(_LANES), np.zeros(_LANES), m.view(np.uint32)
    out, corrects, moved = maxima.view(np.uint32), stays != np.float32(0.0) or mu != np.float32(0.0), False
    for block in range(len(out)):
        base = starts[block]
        size = starts[block + 1] - base
        snapshot, anchor, momentum = x[base : base + size], a[base : base + size], v[base : base + size]
        if len(late):
            missing = late[base : base + size]
            for k in range(size):
                now[k] = snapshot[k] + np.float32(np.float32(0.0) + missing[k])
        else:
            for k in range(size):
                now[k] = snapshot[k] + np.float32(0.0)
        for k in range(size):
            d[k] = anchor[k] - now[k]
        if mu != np.float32(0.0):
            for k in range(size):
                momentum[k] = np.float32(mu * momentum[k]) + d[k]
            for k in range(size):
                c[k] = np.float32(d[k] * stays) - np.float32(pull * momentum[k])
        else:
            momentum[:] = np.float32(0.0)
            for k in range(size):
                c[k] = d[k] * stays
        if corrects:
            correction = pending[base : base + size]
            if fresh:
                for k in range(size):
                    correction[k] = np.float32(0.0) + c[k]
            else:
                for k in range(size):
                    correction[k] += c[k]
            most = np.uint32(0)
            for k in range(size):
                now[k] += c[k]
            for k in range(size):
                most |= np.uint32(c[k] != np.float32(0.0))
            moved = moved or most != 0
        for k in range(size):
            m[k] = now[k] - anchor[k]
        for k in range(size):
            anchor[k] = now[k]
        for k in range(size, 256):
            d[k] = m[k] = np.float32(0.0)
        longest = np.uint32(0)
        for k in range(256):
            length = np.uint32(bits[k] & np.uint32(0x7FFF_FFFF))
            longest = longest if longest > length else length
        out[block] = longest
        for row in range(0, 256, _LANES):
            for k in range(_LANES):
                d2[k] += np.float64(d[row + k]) * np.float64(d[row + k])
                m2[k] += np.float64(m[row + k]) * np.float64(m[row + k])
    return d2.sum(), m2.sum(), moved


def warm_up() -> None:
    """Compile every kernel, or load it from numba's cache. Takes seconds once."""
    vector, blocks, one = np.zeros(BLOCK, np.float32), np.zeros(1, np.float32), np.float32(0.0)
    ends = np.array([0, BLOCK])
    largest(vector)
    block_maxima(vector, ends, blocks)
    to_bfloat16(vector, np.zeros(BLOCK, np.uint16))
    outer_step(vector, vector, vector, vector, vector, True, one, one, one, ends, blocks)
