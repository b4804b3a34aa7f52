"""One bit a parameter: its sign, times the mean magnitude of its block of 256.

    c = mean |x| sign(x)        1-bit SGD (Seide et al. 2014); with error feedback EF-SignSGD (arXiv 1901.09847)

A payload is the scales of all blocks (bfloat16), then the bits: 1 for negative, the first parameter in the lowest bit.
Zero counts as positive. Nothing here may loop over parameters or hold state.
"""

from __future__ import annotations

import numpy as np

from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.blocks import BLOCK
from simulations.lab.compressors.payloads import bfloat16, joined, numbers, only_zero_bits, parts, starts

__all__ = ["Sign"]


class Sign:
    """`sign`: 0.133 bytes a parameter."""

    name = "sign"
    # ||x - c||^2 = ||x||^2 - ||x||_1^2 / 256 in a block, and ||x||_1 >= ||x||_2. bfloat16 costs 1 %.
    contraction = 0.99 / BLOCK

    def most_bytes(self, size: int) -> int:
        return 2 * -(-size // BLOCK) + -(-size // 8)

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        sizes = np.diff(starts(len(values)), append=len(values))
        sums = np.add.reduceat(np.abs(values), starts(len(values)), dtype=np.float64) if len(values) else np.zeros(0)
        scales = bfloat16(sums / sizes)
        negative = (values < 0.0) & np.repeat(scales > 0, sizes)
        return joined(scales, np.packbits(negative, bitorder="little"))

    def decode(self, payload: Buffer, size: int) -> Vector:
        head, body = parts(payload, 2 * -(-size // BLOCK), -(-size // 8))
        only_zero_bits(body, size)
        values: Vector = np.repeat(numbers(head), BLOCK)[:size]
        words = values.view(np.uint32)
        words |= np.unpackbits(body, count=size, bitorder="little").astype(np.uint32) << np.uint32(31)
        if (words == 1 << 31).any():
            raise PayloadError("a zero has a sign")
        return values
