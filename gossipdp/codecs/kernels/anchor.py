"""Kernels that touch the anchor: copy a chunk before an exchange, and mix a difference in after it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.compiled import kernel

__all__ = ["capture", "mix"]

LARGEST: Final = np.float32(2.0**48)
"""largest magnitude on the network's grid; larger own parameters are cut to it, and NaN is read as 0"""
LARGEST_BITS: Final = np.uint32(np.array(LARGEST).view(np.uint32))


@kernel
def capture(
    a: Vector,
    predicted: Vector,
    ranges: NDArray[np.float64],
    guard: float,
    starts: NDArray[np.int64],
    copy: Vector,
    largest: Vector,
    levels: NDArray[np.uint8],
) -> None:
    """Copy a chunk, and choose the level of each block's range.

    The level names the smallest range that is at least the predicted one and at least guard * |a|_inf. The guard keeps
    |a/s| < 2^34 for any prediction. Parameters beyond LARGEST are replaced.

    Args:
        a: the anchor's chunk, shape (n,).
        predicted: predicted range of each block, shape (blocks,).
        ranges: the table of ranges, shape (256,), ascending.
        starts: first parameter of each block, then n; shape (blocks + 1,).
        copy: out, shape (n,).
        largest: out, |copy|_inf of each block, shape (blocks,).
        levels: out, shape (blocks,).
    """
    bits, out, bound = a.view(np.uint32), copy.view(np.uint32), largest.view(np.uint32)
    for block in range(len(levels)):
        base, stop = starts[block], starts[block + 1]
        source, target = bits[base:stop], out[base:stop]
        most = np.uint32(0)
        for k in range(len(source)):
            target[k] = source[k]
            size_bits = np.uint32(source[k] & np.uint32(0x7FFF_FFFF))
            most = most if most > size_bits else size_bits
        if most > LARGEST_BITS:
            values = copy[base:stop]
            for k in range(len(values)):
                clipped = min(max(values[k], -LARGEST), LARGEST)
                values[k] = clipped if values[k] == values[k] else np.float32(0.0)
        bound[block] = min(most, LARGEST_BITS)
        need = np.float64(largest[block]) * guard
        if predicted[block] > need:
            need = np.float64(predicted[block])
        level, jump = 0, 128
        while jump:
            if ranges[level + jump - 1] < need:
                level += jump
            jump >>= 1
        levels[block] = level


@kernel
def mix(
    differences: NDArray[np.int16],
    scale: Vector,
    starts: NDArray[np.int64],
    rows: NDArray[np.int64],
    wide: Vector,
    share: float,
    pull: float,
    a: Vector,
    pending: Vector,
    v: Vector,
    with_v: bool,
) -> None:
    """a += share * delta; pending += share * delta; v -= pull * share * delta.

    delta is scale * difference, or what `wide` holds for an escalated block.

    Args:
        differences: d of every parameter, shape (n,).
        scale: grid step of each block with its sign, shape (blocks,).
        starts: first parameter of each block, then n; shape (blocks + 1,).
        rows: where each block begins in `wide`, or -1.
        wide: delta of the escalated blocks, one after another.
        with_v: False leaves v alone.
    """
    step, part, back = np.empty(256, np.float32), np.float32(share), np.float32(pull)
    for block in range(len(scale)):
        base, stop = starts[block], starts[block + 1]
        size = stop - base
        if rows[block] < 0:
            factor, d = scale[block], differences[base:stop]
            for k in range(size):
                step[k] = part * np.float32(factor * np.float32(d[k]))
        else:
            delta = wide[rows[block] : rows[block] + size]
            for k in range(size):
                step[k] = part * delta[k]
        anchor, correction = a[base:stop], pending[base:stop]
        for k in range(size):
            anchor[k] += step[k]
        for k in range(size):
            correction[k] += step[k]
        if with_v:
            momentum = v[base:stop]
            for k in range(size):
                momentum[k] -= back * step[k]
