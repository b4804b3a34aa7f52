"""How far a chunk's rounds swing or grow, measured on a sample of its blocks (algorithms section 3b).

Along directions that it learns fast, the inner optimizer undoes a correction. What it undoes after the next snapshot
counts as training, and anchors are averaged again before that is known. The outer loop feeds back then, and momentum
multiplies it. D, a round's own movement, opposes that of one or two rounds before in such a loop, or repeats it and
grows. Progress points where it did before, and grows no longer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.blocks import BLOCK

__all__ = ["Swings"]

SAMPLE: Final = 16
"""blocks of a chunk that are measured, if it has as many"""
KEPT: Final = 0.7
"""weight of earlier rounds in averages"""
LAGS: Final = 2
"""earlier rounds that D is compared with"""
SHORTEST: Final = 0.1
"""length of a round that shows something, as a share of a usual one: a few steps are noise"""
BEGINS: Final = 0.15
"""average cosine of D and an earlier D, below 0, from which swings count; average growth from which it counts"""
WHOLE: Final = 0.3
"""the same at which they count in full"""
MOST: Final = 4.0
"""g of what counts in full"""
AFRESH: Final = 4.0
"""length of D, in units of each earlier D, from which those say nothing: no loop grows as fast"""
JUMP: Final = 0.5
"""most that one round counts for in the average growth, in logarithms"""
TYPICAL: Final = 4.0
"""most that one block counts for, in |D|^2, as a multiple of the median block"""


class Swings:
    """g of each chunk: 0 while D goes on as before, up to 4 while it turns back or grows.

    Args:
        spans: the chunks of parameters in the flat vector, in order; chunks of buffers are left out.
    """

    def __init__(self, spans: Sequence[slice]) -> None:
        self._places = [_sampled(number, span.stop - span.start) for number, span in enumerate(spans)]
        self.begin()

    def begin(self) -> None:
        """Another training process begins."""
        count = len(self._places)
        self._before: list[deque[Vector]] = [deque(maxlen=LAGS) for _ in range(count)]
        """by chunk: sampled D of the last rounds, the last one first"""
        self._signs: list[NDArray[np.float64]] = [np.zeros(LAGS + 1) for _ in range(count)]
        """by chunk: how far D opposes each of these, and how far it grows; averages over the rounds"""

    def measure(self, chunk: int, x: Vector, late: Vector, a: Vector, part: float = 1.0) -> float:
        """g of a chunk at the end of a round.

        Args:
            x: the snapshot of this chunk, shape (n,).
            late: corrections that are not inside x, shape (n,), or empty.
            a: its anchor, shape (n,).
            part: length of the round, as a share of a usual one.
        """
        if part < SHORTEST:
            return 0.0
        places = self._places[chunk]
        d = a[places] - x[places]
        if len(late):
            d -= late[places]
        before, signs = self._before[chunk], self._signs[chunk]
        found = [_against(d, each) for each in before]
        if found and min(longer for *_, longer in found) > AFRESH:
            signs[:] = 0.0
            before.clear()
            found = []
        for lag, (cosine, growth, _) in enumerate(found):
            signs[lag] += (1.0 - KEPT) * (-cosine - signs[lag])
            if lag == 0:
                signs[LAGS] += (1.0 - KEPT) * (growth - signs[LAGS])
        before.appendleft(d)
        return MOST * min(1.0, max(0.0, (float(signs.max()) - BEGINS) / (WHOLE - BEGINS)))


def _sampled(chunk: int, size: int) -> NDArray[np.int64]:
    """Indices of the sampled parameters of a chunk, block after block."""
    blocks = -(-size // BLOCK)
    chosen = np.sort(np.random.default_rng(chunk).choice(blocks, min(blocks, SAMPLE), replace=False))
    places = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    return places[places < size]


def _against(d: Vector, before: Vector) -> tuple[float, float, float]:
    """D against an earlier D. No block decides alone. All are 0 if one of the vectors is 0 or not finite.

    Returns:
        Their cosine; the logarithm of D's part along the earlier one, at most a `JUMP`; the ratio of their lengths.
    """
    starts = np.arange(0, len(d), BLOCK)

    def by_block(one: Vector, other: Vector) -> NDArray[np.float64]:
        return np.add.reduceat(one.astype(np.float64) * other, starts)

    now, then = by_block(d, d), by_block(before, before)
    # A fast scalar would decide for its chunk otherwise.
    weights = np.minimum(_tamed(now), _tamed(then))
    now2, then2, product = (float(weights @ each) for each in (now, then, by_block(d, before)))
    if not (0.0 < now2 * then2 < math.inf):
        return 0.0, 0.0, 0.0
    growth = math.log(product / then2) if product > 0.0 else -JUMP
    return product / math.sqrt(now2 * then2), min(JUMP, max(-JUMP, growth)), math.sqrt(now2 / then2)


def _tamed(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that hold each block to TYPICAL usual ones."""
    known = squares[squares > 0.0]
    most = TYPICAL * float(np.median(known)) if len(known) else 0.0
    return np.where(squares > most, most / np.where(squares > 0.0, squares, 1.0), 1.0)
