"""Block-wise absmax int8 of the anchor itself: each block shares one fp32 scale, max |a| / 127.

Kept for comparison, and for peers without a common history. On states an absolute grid leaves a floor of disagreement
that the modulo codecs do not have (algorithms section 2). Frames: [int8 codes, fp32 scales].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gossipdp.codecs.base import Buffer, PayloadError, Vector, array_of
from gossipdp.codecs.blocks import BLOCK, Blocks
from gossipdp.codecs.dense import DenseCodec, finite

__all__ = ["INT8"]

LARGEST: Final = 2.0**100
"""largest scale; 127 times it is still a finite fp32 number"""


def _encode(a: Vector, blocks: Blocks) -> list[Buffer]:
    highest = np.maximum.reduceat(np.abs(a), blocks.starts[:-1])
    scales = np.minimum(highest / np.float32(127.0), np.float32(LARGEST))
    # A block of zeros, or of denormals too small to divide by, is sent as zeros.
    inverse = np.where(scales > 2.0**-120, 1.0 / np.maximum(scales, np.float32(2.0**-120)), 0.0).astype(np.float32)
    codes = np.clip(np.rint(a * blocks.spread(inverse)), -127.0, 127.0).astype(np.int8)
    return [codes.data.cast("B"), scales.astype("<f4").data.cast("B")]


def _decode(frames: Sequence[Buffer], blocks: Blocks) -> Vector:
    if len(frames) != 2:
        raise PayloadError(f"{len(frames)} frames, wanted 2")
    codes, scales = array_of(frames[0], "i1", blocks.size), finite(array_of(frames[1], "<f4", len(blocks)))
    if len(scales) and not 0.0 <= float(scales.min()) <= float(scales.max()) <= LARGEST:
        raise PayloadError("a scale out of range")
    values: Vector = codes * blocks.spread(scales.astype(np.float32))
    return values


INT8: Final = DenseCodec("int8", 80, 1.0 + 4.0 / BLOCK, _encode, _decode)
