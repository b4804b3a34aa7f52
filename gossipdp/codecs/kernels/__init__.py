"""The hot loops of the modulo codec, compiled by numba: one pass over a chunk each, on one thread, without the GIL.

They work on blocks of 256 parameters, in arrays that the caller has measured. No kernel allocates for each block,
checks a length or raises. No kernel uses fast-math: an escalation computes u again, and both hosts must compute the
same delta.

numba's cache does not notice a change in another file. Kernels that call each other therefore share a file.
"""

from __future__ import annotations

import numpy as np

from gossipdp.codecs.base import BLOCK
from gossipdp.codecs.kernels.anchor import capture, mix
from gossipdp.codecs.kernels.codes import (
    coefficients,
    encode,
    encode_rows,
    recompute,
    unpack_rows,
    verdict,
    verdict_rows,
)

__all__ = [
    "capture",
    "coefficients",
    "encode",
    "encode_rows",
    "mix",
    "recompute",
    "unpack_rows",
    "verdict",
    "verdict_rows",
    "warm_up",
]


def warm_up() -> None:
    """Compile every kernel for the types that the codecs pass, or load it from numba's cache. Takes seconds once."""
    vector, step, one = np.zeros(BLOCK, np.float32), np.ones(1), np.zeros(1, np.int64)
    codes, checks, flags = np.zeros(512, np.uint8), np.zeros(1, np.uint16), np.zeros(1, np.uint8)
    rows, small, sealed = np.zeros((1, BLOCK), np.int64), np.zeros(1, np.int32), np.zeros(512, np.uint8)
    sealed.flags.writeable = False
    differences = np.zeros(BLOCK, np.int16)
    key = np.uint32(0)
    coefs = coefficients(key, key)
    capture(vector, vector[:1], np.ones(256), 0.0, vector.copy(), vector[:1].copy(), flags)
    encode(vector, vector[:1], step, key, key, 4, coefs, codes, checks)
    verdict(sealed, checks, sealed, checks, 4, coefs, differences, flags, one, small)
    mix(differences, vector[:1], small, np.zeros((1, BLOCK), np.float32), 0.0, 0.0, vector, vector, vector, True)
    recompute(vector, step, one, key, key, rows)
    encode_rows(rows, 4, 4, coefs, codes, checks)
    unpack_rows(sealed, one, 4, rows)
    verdict_rows(rows, checks, rows, checks, 8, coefs, flags, rows)
