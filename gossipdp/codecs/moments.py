"""Adam's two moments in 2 bytes a parameter. A joiner or the same peer's next training process takes them over.

The *update* m / sqrt(v) must survive, not the moments (Kingma & Ba, arXiv 1412.6980). An absolute error that is small
beside the largest v of a block would move a parameter with a small v by many times its learning rate. The format is
block-wise like Dettmers et al. (arXiv 2110.02861), but it ties the two moments together:

    s = sqrt(v)    8 bits, logarithmic:  s' = top 2^(-(255 - code) / 12),  0 only for 0
    r = m / s'     8 bits, linear:       r' = scale code,  |r'| <= 8;   m' = r' s'

For |r| < 8, and s no smaller than 2^-21 of its block's largest, | m'/s' - m/s | <= max|r| / 254 + 0.0293 |m/s|. A
smaller s is encoded too large, so its update is too small. m' is a multiple of s', so s' is 0 only where m' is. By
Cauchy-Schwarz a mean of gradients never exceeds 7.3 sqrt(v) at Adam's default betas (0.9, 0.999).

A payload is the codes of s, each block's top, the codes of r, each block's scale. The training process encodes and
decodes it (`training.optimizer_state.encoding`); the daemon only checks. Nothing here may know peers or optimizers.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import numpy as np

from gossipdp.codecs.base import Buffer, Vector, array_of
from gossipdp.codecs.blocks import BLOCK

__all__ = ["LEAST", "MOST", "MOST_RATIO", "STEPS", "Places", "check", "digest", "payload_bytes", "places", "shared"]

STEPS: Final = 12
"""codes of s between two powers of two"""
MOST_RATIO: Final = 8.0
"""largest m / sqrt(v). The receiver cuts to it too, which bounds the first update whatever a source sends"""
LEAST: Final = 2.0**-60
"""smallest s' above 0; its square is still a normal number"""
MOST: Final = 2.0**60
"""largest s'"""
MOST_SCALE: Final = 1.001 * MOST_RATIO / 127.0


class Places(NamedTuple):
    """The bytes that hold some parameters."""

    roots: slice
    """codes of s"""
    tops: slice
    ratios: slice
    """codes of r"""
    scales: slice


def payload_bytes(size: int) -> int:
    """Bytes of both moments of `size` parameters."""
    return 2 * _half(size)


def places(size: int, first: int, last: int, at: int = 0) -> Places:
    """The bytes of parameters [first, last).

    Args:
        size: parameters of the payload.
        first: a multiple of 256. `last` is one, too, or `size`.
        at: first byte of the payload.
    """
    blocks = slice(4 * (first // BLOCK), 4 * -(-last // BLOCK))

    def half(begin: int) -> tuple[slice, slice]:
        scales = begin + size
        return slice(begin + first, begin + last), slice(scales + blocks.start, scales + blocks.stop)

    return Places(*half(at), *half(at + _half(size)))


def shared(chunk: int, width: int, size: int) -> slice:
    """The bytes of a shared buffer that hold a chunk's payload: it begins where the chunk's own fp32 values begin.

    Args:
        chunk: number of the chunk.
        width: parameters of every chunk but the last.
        size: parameters of this chunk.
    """
    return slice(4 * width * chunk, 4 * width * chunk + payload_bytes(size))


def check(payload: Buffer, size: int) -> bool:
    """Whether the payload decodes to bounded moments, in which case any codes do.

    Its length must be right, and every top and scale finite, in range and not negative.
    """
    view = memoryview(payload).cast("B")
    if view.nbytes != payload_bytes(size):
        return False
    _, tops, _, scales = places(size, 0, size)
    blocks = -(-size // BLOCK)
    return _within(array_of(view[tops], "<f4", blocks), MOST) and _within(
        array_of(view[scales], "<f4", blocks), MOST_SCALE
    )


def digest(payload: Buffer) -> bytes:
    """16-byte BLAKE2b of a payload, as a manifest states it."""
    return hashlib.blake2b(payload, digest_size=16, person=b"gossipdp moments").digest()


def _half(size: int) -> int:
    return size + 4 * -(-size // BLOCK)


def _within(values: Vector, most: float) -> bool:
    """Whether all are in [0, most]; NaN is not."""
    return bool(((values >= 0.0) & (values <= np.float32(most))).all())
