"""The registry: every codec by name. `base` states what all of them promise.

Code here may import only numpy, numba and codecs. A new codec is one file and one line here. The conformance tests then
run on it. To make it a setting, add its name to `Exchange` in `gossipdp/config.py`; a test compares the two lists.
Modulo codecs of every width exist already.
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
