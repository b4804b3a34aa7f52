"""Numbers as bfloat16, and the fields of a payload."""

import numpy as np

ONE, TWO, NAN, INFINITY, MINUS_ZERO, MINUS_ONE = 0x3F80, 0x4000, 0x7FC0, 0x7F80, 0x8000, 0xBF80
BEYOND = 0x7200
"""2^101"""
BAD_LEVELS = [(NAN, NAN), (INFINITY, INFINITY), (ONE, INFINITY), (ONE, BEYOND), (MINUS_ZERO, ONE), (MINUS_ONE, ONE)]


def generator() -> np.random.Generator:
    return np.random.default_rng(11)
