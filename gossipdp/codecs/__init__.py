"""Vectors to bytes and back: every codec by name. A new codec is one file and one line here.

`CODECS` are two-sided, for states (what all of them promise is in `base`); `COMPRESSORS` one-way, for increments (see
`compressor`). Nothing may be imported here but numpy, numba and codecs.
"""

from __future__ import annotations

from gossipdp.codecs.base import Codec
from gossipdp.codecs.dense import BF16, FP16, FP32
from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.dct import DCT
from gossipdp.codecs.increments.lowrank import LowRank
from gossipdp.codecs.increments.sign import Sign
from gossipdp.codecs.increments.threshold import Threshold
from gossipdp.codecs.increments.topk import TopK
from gossipdp.codecs.increments.twobit import TwoBit
from gossipdp.codecs.increments.whole import WHOLE
from gossipdp.codecs.int8 import INT8
from gossipdp.codecs.modulo import ModuloCodec

__all__ = ["CODECS", "COMPRESSORS"]

CODECS: dict[str, Codec] = {
    "fp32": FP32,
    "fp16": FP16,
    "bf16": BF16,
    "int8": INT8,
    **{f"modulo{bits}": ModuloCodec(bits) for bits in range(2, 17)},
}

COMPRESSORS: dict[str, Compressor] = {
    **{f"topk{k}": TopK(k) for k in (64, 128, 256)},
    **{f"dct{k}": DCT(k) for k in (64, 128, 256)},
    "threshold3": Threshold(3.0),
    "sign": Sign(),
    "twobit": TwoBit(),
    "lowrank4": LowRank(4),
    "whole": WHOLE,
}
