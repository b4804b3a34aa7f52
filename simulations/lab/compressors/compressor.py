"""The interface of a compressor: an increment as bytes, from one sender to any number of receivers.

Increments are sums of steps that enter the global sum exactly once. The sender may therefore send with the next
increment what it left out of this one, and error feedback needs one buffer at the sender (`error_feedback`). *States*
of changing neighbours have no such sum; their codecs are two-sided (`gossipdp.codecs.base`).

All receivers decode the same numbers, bit for bit, on every machine. A decoder therefore fixes the order of its sums,
and uses no BLAS or libm. An encoder may use them, because only the sender runs it. Nothing here may know peers, rounds
or weights.
"""

from __future__ import annotations

from typing import Protocol

from gossipdp.codecs.base import Buffer, Vector

__all__ = ["Compressor"]


class Compressor(Protocol):
    """A one-way format of increments. A compressor has no state and is shared."""

    name: str
    """the key in the registry"""
    contraction: float
    """delta: ||x - decode(encode(x))||^2 <= (1 - delta) ||x||^2 for every x whose largest value is between 2^-100 and
    2^100"""

    def most_bytes(self, size: int) -> int:
        """The longest payload of `size` parameters."""

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        """Encode an increment.

        Args:
            values: shape (n,), fp32, finite.
            seed: 64 bits of randomness. The payload holds everything that a receiver needs of it.
        """

    def decode(self, payload: Buffer, size: int) -> Vector:
        """Decode a payload. Uses memory for a few vectors of `size` at most, even for a malformed payload.

        Returns:
            A new vector, shape (size,), fp32, magnitudes at most 2^100, the same at every receiver.

        Raises:
            PayloadError: the payload is malformed.
        """
