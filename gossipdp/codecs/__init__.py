"""The registry: every codec and compressor by name.

`CODECS` are two-sided, for states; `base` states what all of them promise. `COMPRESSORS` are one-way, for increments;
see `increments.compressor`. Code here may import only numpy, numba and codecs.

A new codec or compressor is one file and one line here. The conformance tests then run on it. To make it a setting, add
its name to `Exchange` in `gossipdp/config.py`; a test compares the two lists. Modulo codecs of every width exist
already.
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
