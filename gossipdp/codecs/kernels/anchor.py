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
    copy: Vector,
    largest: Vector,
    levels: NDArray[np.uint8],
) -> None:
    """Copy a chunk, padded with zeros to whole blocks, and choose the level of each block's range.

    The level names the smallest range that is at least the predicted one and at least guard * |a|_inf. The guard keeps
    |a/s| < 2^34 for any prediction. Parameters beyond LARGEST are replaced.

    Args:
        a: the anchor's chunk, shape (n,).
        predicted: predicted range of each block, shape (blocks,).
        ranges: the table of ranges, shape (256,), ascending.
        copy: out, shape (256 blocks,).
        largest: out, |copy|_inf of each block, shape (blocks,).
        levels: out, shape (blocks,).
    """
    bits, out, bound = a.view(np.uint32), copy.view(np.uint32), largest.view(np.uint32)
    for block in range(len(levels)):
        base = block * 256
        size = min(256, len(a) - base)
        source, target = bits[base : base + size], out[base : base + 256]
        most = np.uint32(0)
        for k in range(size):
            target[k] = source[k]
            size_bits = np.uint32(source[k] & np.uint32(0x7FFF_FFFF))
            most = most if most > size_bits else size_bits
        for k in range(size, 256):
            target[k] = 0
        if most > LARGEST_BITS:
            values = copy[base : base + 256]
            for k in range(size):
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
    rows: NDArray[np.int32],
    wide: NDArray[np.float32],
    share: float,
    pull: float,
    a: Vector,
    pending: Vector,
    v: Vector,
    with_v: bool,
) -> None:
    """a += share * delta; pending += share * delta; v -= pull * share * delta.

    delta is scale * difference, or row rows[block] of `wide` for an escalated block.

    Args:
        differences: d of every parameter, shape (256 blocks,).
        scale: grid step of each block with its sign, shape (blocks,).
        rows: row in `wide` of each block, or -1.
        wide: delta of the escalated blocks, shape (escalated, 256).
        with_v: False leaves v alone.
    """
    step, part, back = np.empty(256, np.float32), np.float32(share), np.float32(pull)
    for block in range(len(scale)):
        base = block * 256
        size = min(256, len(a) - base)
        if rows[block] < 0:
            factor = scale[block]
            for k in range(256):
                step[k] = part * np.float32(factor * np.float32(differences[base + k]))
        else:
            delta = wide[rows[block]]
            for k in range(256):
                step[k] = part * delta[k]
        anchor, correction = a[base : base + size], pending[base : base + size]
        for k in range(size):
            anchor[k] += step[k]
        for k in range(size):
            correction[k] += step[k]
        if with_v:
            momentum = v[base : base + size]
            for k in range(size):
                momentum[k] -= back * step[k]
