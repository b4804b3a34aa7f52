"""Vectors to bytes and back: every codec by name. A new codec is one file and one line here.

Nothing may be imported here but numpy, numba and codecs; what all of them promise is in `base`.
"""

from __future__ import annotations

from gossipdp.codecs.base import Codec
from gossipdp.codecs.dense import BF16, FP16, FP32
from gossipdp.codecs.int8 import INT8
from gossipdp.codecs.modulo import ModuloCodec

__all__ = ["CODECS"]

CODECS: dict[str, Codec] = {
    "fp32": FP32,
    "fp16": FP16,
    "bf16": BF16,
    "int8": INT8,
    **{f"modulo{bits}": ModuloCodec(bits) for bits in range(2, 17)},
}
