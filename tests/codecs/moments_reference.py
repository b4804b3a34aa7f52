"""The format of `codecs.moments` in plain numpy. Not a test."""

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import LEAST, MOST, MOST_RATIO, STEPS, places

Vector = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def spread(scales: Vector, size: int) -> Vector:
    return np.repeat(scales, BLOCK)[:size]


def largest(values: Vector) -> Vector:
    return np.maximum.reduceat(values, np.arange(0, len(values), BLOCK))


def root_codes(v: Vector) -> tuple[Bytes, Vector]:
    """Codes of s, and the tops."""
    root = np.sqrt(v, dtype=np.float32)
    tops = np.minimum(largest(root), np.float32(MOST))
    tops = np.where(tops > 0.0, np.maximum(tops, np.float32(LEAST)), 0.0).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(root / spread(tops, len(v)))
    codes = np.clip(np.rint(np.nan_to_num(octaves, neginf=-1e3) * STEPS) + 255.0, 1.0, 255.0).astype(np.uint8)
    codes[root == 0.0] = 0
    return codes, tops


def roots_of(codes: Bytes, tops: Vector) -> Vector:
    """s' of every parameter."""
    levels = np.concatenate([[0.0], np.exp2(-np.arange(254, -1, -1) / STEPS)]).astype(np.float32)
    roots = levels[codes] * spread(tops, len(codes))
    kept: Vector = np.where((codes > 0) & (roots < LEAST), np.float32(LEAST), roots)
    return kept


def ratio_codes(m: Vector, roots: Vector) -> tuple[NDArray[np.int8], Vector]:
    """Codes of r, and the scales."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(roots > 0.0, m / roots, 0.0).astype(np.float32)
    np.clip(ratio, -MOST_RATIO, MOST_RATIO, out=ratio)
    scales = np.divide(largest(np.abs(ratio)), 127.0, dtype=np.float32)
    scales[scales < 2.0**-100] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.nan_to_num(ratio / spread(scales, len(m)), posinf=0.0, neginf=0.0)
    return np.clip(np.rint(codes), -127.0, 127.0).astype(np.int8), scales


def encoded(m: Vector, v: Vector) -> Bytes:
    """The payload of finite moments."""
    codes, tops = root_codes(v)
    ratios, scales = ratio_codes(m, roots_of(codes, tops))
    return np.concatenate([codes, tops.view(np.uint8), ratios.view(np.uint8), scales.view(np.uint8)])


def decoded(payload: Bytes, size: int) -> tuple[Vector, Vector]:
    """exp_avg and exp_avg_sq of a payload."""
    codes, tops, ratios, scales = (np.array(payload[at]) for at in places(size, 0, size))
    roots = roots_of(codes, tops.view(np.float32))
    r = np.clip(ratios.view(np.int8) * spread(scales.view(np.float32), size), -MOST_RATIO, MOST_RATIO)
    return (r * roots).astype(np.float32), roots * roots
