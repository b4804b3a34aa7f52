"""Increments sent whole: every parameter as one bfloat16, for buffers and for a warm start.

Error feedback sends the loss of the rounding with the next increment. Nothing here may hold state.
"""

from __future__ import annotations

from typing import Final

from gossipdp.codecs.base import Buffer, Vector
from gossipdp.codecs.increments.payloads import bfloat16, numbers, parts

__all__ = ["WHOLE", "Whole"]


class Whole:
    """`whole`: 2 bytes a parameter, a relative error of 2^-9."""

    name = "whole"
    contraction = 1.0 - 2.0**-17

    def most_bytes(self, size: int) -> int:
        return 2 * size

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        return bfloat16(values).data.cast("B")

    def decode(self, payload: Buffer, size: int) -> Vector:
        (bits,) = parts(payload, 2 * size)
        return numbers(bits, signed=True)


WHOLE: Final = Whole()
