"""Two bits a parameter in blocks of 256: two levels with a sign.

    c = +-low or +-high, the two-means of the block's magnitudes; biased, with the least error of two levels

A payload is the two levels of all blocks (bfloat16), then the codes, the first parameter in the lowest bits of a byte:
negative << 1 | high. Nothing here may loop over parameters or hold state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import BLOCK, Buffer, PayloadError, Vector
from gossipdp.codecs.increments import kernels
from gossipdp.codecs.increments.kernels import sealed
from gossipdp.codecs.increments.payloads import joined, numbers, only_zero_bits, parts, starts

__all__ = ["TwoBit"]

Codes = NDArray[np.uint8]


class TwoBit:
    """`twobit`: 0.266 bytes a parameter."""

    name = "twobit"
    # At least as good as the one level of `sign`.
    contraction = 0.99 / BLOCK

    def most_bytes(self, size: int) -> int:
        return 4 * -(-size // BLOCK) + -(-size // 4)

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        levels, codes = np.empty((-(-len(values) // BLOCK), 2), np.uint16), np.empty(len(values), np.uint8)
        kernels.split_blocks(sealed(values), BLOCK, levels, codes)
        return joined(levels.astype("<u2", copy=False), _pack(codes))

    def decode(self, payload: Buffer, size: int) -> Vector:
        head, body = parts(payload, 4 * -(-size // BLOCK), -(-size // 4))
        pairs, codes = numbers(head, signed=False).reshape(-1, 2), _unpack(body, size)
        uses = _uses(codes, len(pairs))
        if (uses[:, 2:] & (pairs == 0.0)).any():
            raise PayloadError("a zero has a sign")
        low, high = uses[:, 0] | uses[:, 2], uses[:, 1] | uses[:, 3]
        if ((low & high) != (pairs[:, 0] < pairs[:, 1])).any() or (high & ~low).any():
            raise PayloadError("no encoder writes these levels")
        return _look_up(np.concatenate([pairs, -pairs], axis=1), codes)


def _uses(codes: Codes, blocks: int) -> NDArray[np.bool_]:
    """Whether each block uses each of the four codes, shape (blocks, 4)."""
    flags = np.bitwise_or.reduceat(np.uint8(1) << codes, starts(len(codes))) if blocks else np.zeros(0, np.uint8)
    return np.unpackbits(flags[:, None], axis=1, count=4, bitorder="little").view(np.bool_)


def _look_up(table: Vector, codes: Codes) -> Vector:
    """The value of every code. `table` holds the four values of each block, in the order of the codes."""
    rows = np.repeat(np.arange(0, 4 * len(table), 4), BLOCK)[: len(codes)]
    values: Vector = table.reshape(-1)[rows + codes]
    return values


def _pack(codes: Codes) -> Codes:
    padded = np.zeros(-(-len(codes) // 4) * 4, np.uint8)
    padded[: len(codes)] = codes
    four = padded.reshape(-1, 4)
    packed: Codes = four[:, 0].copy()
    for place in range(1, 4):
        packed |= four[:, place] << np.uint8(2 * place)
    return packed


def _unpack(packed: Codes, size: int) -> Codes:
    """The inverse of `_pack`. Raises PayloadError unless the padding is zero."""
    only_zero_bits(packed, 2 * size)
    codes = np.empty((len(packed), 4), np.uint8)
    for place in range(4):
        np.bitwise_and(packed >> np.uint8(2 * place), np.uint8(3), out=codes[:, place])
    return codes.reshape(-1)[:size]
