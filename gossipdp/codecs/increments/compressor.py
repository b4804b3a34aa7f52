"""What a compressor is: an increment as bytes, from one sender to any number of receivers.

Increments are sums of steps that enter the global sum exactly once. What a compressor leaves out of one may be sent
with the next, so error feedback with one buffer at the sender is legitimate, whoever receives (algorithms section 2);
see `error_feedback`. *States* of changing neighbours are another matter: their codecs are two-sided and in `base`.

All receivers decode the same numbers, bit for bit, on every machine: a decoder sums in an order of its own and never
asks BLAS or libm. An encoder may; only its sender ever runs it. Nothing here may know about peers, rounds or weights.
"""

from __future__ import annotations

from typing import Protocol

from gossipdp.codecs.base import Buffer, Vector

__all__ = ["Compressor"]


class Compressor(Protocol):
    """A way to send increments; stateless and shared."""

    name: str
    """at most 16 characters"""
    contraction: float
    """delta: ||x - decode(encode(x))||^2 <= (1 - delta) ||x||^2 for every x whose largest value is between 2^-100 and
    2^100; 0 where nothing is promised, or only on average over seeds"""

    def most_bytes(self, size: int) -> int:
        """The longest payload of `size` parameters. What is longer is refused unread."""

    def encode(self, values: Vector, *, seed: int) -> Buffer:
        """The payload of `values`, shape (n,), finite, fp32.

        Args:
            seed: 64 bits, for what is drawn; the payload holds what the receiver needs of it.
        """

    def decode(self, payload: Buffer, size: int) -> Vector:
        """What every receiver takes `values` for, shape (size,), fp32, at most 2^100 each; a new vector.

        Raises:
            PayloadError: whatever is wrong with the payload; no more memory than a few times `size` was used.
        """
