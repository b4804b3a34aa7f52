"""The hot loops of the modulo codec, compiled by numba: one pass over a chunk each, on one thread, without the GIL.

They work on blocks of at most 256 parameters (`codecs.blocks`), in arrays that the caller has measured. No kernel
allocates for each block, checks a length or raises. No kernel uses fast-math: an escalation computes u again, and both
hosts must compute the same delta.

numba's cache does not notice a change in another file. Kernels that call each other therefore share a file.
"""

from __future__ import annotations

import numpy as np

from gossipdp.codecs.blocks import BLOCK
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
    u, small, sealed = np.zeros(BLOCK, np.int64), np.zeros(1, np.int32), np.zeros(512, np.uint8)
    sealed.flags.writeable = False
    differences = np.zeros(BLOCK, np.int16)
    key, ends = np.uint32(0), np.array([0, BLOCK])
    coefs = coefficients(key, key)
    capture(vector, vector[:1], np.ones(256), 0.0, ends, vector.copy(), vector[:1].copy(), flags)
    encode(vector, vector[:1], step, key, key, 4, coefs, ends, ends, codes, checks)
    verdict(sealed, checks, sealed, checks, 4, coefs, ends, ends, differences, flags, one, small)
    mix(differences, vector[:1], ends, one, vector, 0.0, 0.0, vector, vector, vector, True)
    recompute(vector, step, ends, one, key, key, ends, u)
    encode_rows(u, 4, 4, coefs, ends, ends, codes, checks)
    unpack_rows(sealed, ends, one, 4, ends, u)
    verdict_rows(u, checks, u, checks, 8, coefs, ends, flags, u)
