"""Adam's two moments in 2 bytes a parameter. A joiner or the same peer's next training process takes them over.

The *update* m / sqrt(v) must survive, not the moments (Kingma & Ba, arXiv 1412.6980). An absolute error that is small
beside the largest v of a block would move a parameter with a small v by many times its learning rate. The format is
block-wise like Dettmers et al. (arXiv 2110.02861), but it ties the two moments together:

    s = sqrt(v)    8 bits, logarithmic:  s' = top 2^(-(255 - code) / 12),  0 only for 0
    r = m / s'     8 bits, linear:       r' = scale code,  |r'| <= 8;   m' = r' s'

For |r| < 8, and s no smaller than 2^-21 of its block's largest, | m'/s' - m/s | <= max|r| / 254 + 0.0293 |m/s|. A
smaller s is encoded too large, so its update is too small. m' is a multiple of s', so s' is 0 only where m' is. By
Cauchy-Schwarz a mean of gradients never exceeds 7.3 sqrt(v) at Adam's default betas (0.9, 0.999). Nothing here may know
peers or optimizers.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import BLOCK, Buffer, PayloadError, Vector, array_of

__all__ = [
    "MOST_RATIO",
    "check",
    "decode_first",
    "decode_second",
    "digest",
    "encode_first",
    "encode_second",
    "payload_bytes",
]

STEPS: Final = 12
"""codes of s between two powers of two"""
MOST_RATIO: Final = 8.0
"""largest m / sqrt(v). The receiver cuts to it too, which bounds the first update whatever a source sends"""
LEAST: Final = np.float32(2.0**-60)
"""smallest s' above 0; its square is still a normal number"""
MOST: Final = np.float32(2.0**60)
"""largest s'"""
_LEVELS: Final = np.concatenate([[0.0], np.exp2(-np.arange(254, -1, -1) / STEPS)]).astype(np.float32)

Bytes = NDArray[np.uint8]


def payload_bytes(size: int) -> int:
    """Bytes of both moments of `size` parameters."""
    return 2 * _half(size)


def encode_second(v: Vector) -> Bytes:
    """Encode exp_avg_sq, the first half of a payload.

    Args:
        v: shape (n,), fp32.

    Returns:
        [codes, tops of the blocks].

    Raises:
        PayloadError: a value is negative or not finite.
    """
    if not bool(np.isfinite(v).all()) or (len(v) and float(v.min()) < 0.0):
        raise PayloadError("a second moment is negative or not finite")
    root = np.sqrt(v, dtype=np.float32)
    tops = np.minimum(np.maximum.reduceat(root, np.arange(0, len(v), BLOCK)), MOST) if len(v) else root
    tops = np.where(tops > 0.0, np.maximum(tops, LEAST), 0.0).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(root / _spread(tops, len(v)))
    codes = np.clip(np.rint(np.nan_to_num(octaves, neginf=-1e3) * STEPS) + 255.0, 1.0, 255.0).astype(np.uint8)
    codes[root == 0.0] = 0
    return _joined(codes, tops)


def encode_first(m: Vector, second: Buffer) -> Bytes:
    """Encode exp_avg, the second half of a payload.

    Args:
        m: shape (n,), fp32.
        second: the result of `encode_second` for the same parameters.

    Returns:
        [codes, scales of the blocks].

    Raises:
        PayloadError: a value is not finite.
    """
    if not bool(np.isfinite(m).all()):
        raise PayloadError("a first moment is not finite")
    root = _roots(second, len(m))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(root > 0.0, m / root, 0.0).astype(np.float32)
    np.clip(ratio, -MOST_RATIO, MOST_RATIO, out=ratio)
    if not len(m):
        return _joined(np.zeros(0, np.uint8), ratio)
    largest = np.maximum.reduceat(np.abs(ratio), np.arange(0, len(m), BLOCK))
    scales: Vector = np.divide(largest, 127.0, dtype=np.float32)
    scales[scales < 2.0**-100] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.nan_to_num(ratio / _spread(scales, len(m)), posinf=0.0, neginf=0.0)
    return _joined(np.clip(np.rint(codes), -127.0, 127.0).astype(np.int8).view(np.uint8), scales)


def decode_second(payload: Buffer, size: int) -> Vector:
    """exp_avg_sq, shape (size,), from a payload or its first half. Raises PayloadError if malformed."""
    root = _roots(payload, size)
    squares: Vector = root * root
    return squares


def decode_first(payload: Buffer, size: int) -> Vector:
    """exp_avg, shape (size,), from a payload. Raises PayloadError if malformed."""
    if memoryview(payload).nbytes != payload_bytes(size):
        raise PayloadError(f"{memoryview(payload).nbytes} bytes, wanted {payload_bytes(size)}")
    codes, scales = _parts(memoryview(payload)[_half(size) :], size)
    if len(scales) and not 0.0 <= float(scales.min()) <= float(scales.max()) <= 1.001 * MOST_RATIO / 127.0:
        raise PayloadError("a scale out of range")
    ratio = np.clip(codes.view(np.int8) * _spread(scales, size), -MOST_RATIO, MOST_RATIO)
    m: Vector = (ratio * _roots(payload, size)).astype(np.float32)
    return m


def check(payload: Buffer, size: int) -> bool:
    """Whether the payload decodes: its length is right, and all scales are finite, in range and not negative."""
    try:
        decode_first(payload, size)
    except PayloadError:
        return False
    return True


def digest(payload: Buffer) -> bytes:
    """16-byte BLAKE2b of a payload, as a manifest states it."""
    return hashlib.blake2b(payload, digest_size=16, person=b"gossipdp moments").digest()


def _half(size: int) -> int:
    return size + 4 * -(-size // BLOCK)


def _joined(codes: Bytes, scales: Vector) -> Bytes:
    return np.concatenate([codes, scales.astype("<f4").view(np.uint8)])


def _parts(half: memoryview, size: int) -> tuple[Bytes, Vector]:
    codes, scales = array_of(half[:size], "u1", size), array_of(half[size:], "<f4", -(-size // BLOCK))
    if not bool(np.isfinite(scales).all()):
        raise PayloadError("a scale is not finite")
    return codes, scales.astype(np.float32)


def _roots(payload: Buffer, size: int) -> Vector:
    """s' of every parameter."""
    view = memoryview(payload).cast("B")
    if view.nbytes not in (_half(size), payload_bytes(size)):
        raise PayloadError(f"{view.nbytes} bytes, wanted {payload_bytes(size)}")
    codes, tops = _parts(view[: _half(size)], size)
    if len(tops) and not 0.0 <= float(tops.min()) <= float(tops.max()) <= float(MOST):
        raise PayloadError("a top out of range")
    roots = _LEVELS[codes] * _spread(tops, size)
    kept: Vector = np.where((codes > 0) & (roots < LEAST), LEAST, roots)
    return kept


def _spread(scales: Vector, size: int) -> Vector:
    return np.repeat(scales, BLOCK)[:size]
