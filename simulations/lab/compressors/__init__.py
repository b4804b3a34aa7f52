"""Compressors of baselines: one-way formats of the vectors that a peer sends, and error feedback around them.

`COMPRESSORS` has those that a baseline or a suite names. `compressor` states what all of them promise. A new one is a
file and a line here. The conformance tests then run on it.
"""

from __future__ import annotations

from simulations.lab.compressors.compressor import Compressor
from simulations.lab.compressors.dct import DCT
from simulations.lab.compressors.sign import Sign
from simulations.lab.compressors.topk import TopK

__all__ = ["COMPRESSORS"]

COMPRESSORS: dict[str, Compressor] = {
    **{f"topk{k}": TopK(k) for k in (64, 128)},
    "dct64": DCT(64),
    "sign": Sign(),
}
"""top-k for SparseLoCo, DCT for DeMo, signs for CHOCO"""
