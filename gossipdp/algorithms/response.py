"""How much of a correction the inner optimizer takes back, measured on a sample of the blocks (algorithms section 3b).

Along directions that it learns fast, the inner optimizer undoes a correction. What it undoes after the next snapshot
counts as training, and anchors are averaged again before that is known. So the outer loop feeds back with a gain of
about 2 gamma g, g the share that is taken back, and momentum multiplies it.

D is regressed on c, the corrections that landed in the round before. Both first lose what an average of earlier D
explains, because the progress of a fast host looks like an answer. The share of D that c explains weights the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.blocks import BLOCK

__all__ = ["Response"]

SAMPLE: Final = 16
"""blocks of a chunk that are measured, if it has as many"""
PROGRESS: Final = 0.7
"""weight of earlier rounds in the average D"""
KEPT: Final = 0.5
"""weight of earlier rounds in a falling g; a rising g counts at once"""
UNSEEN: Final = 0.9
"""the same in a round that shows nothing, because no correction had landed before it"""
SHORTEST: Final = 0.1
"""length of a round that shows something, as a share of a usual one: a few steps take nothing back"""
GATE: Final = 0.05
"""R^2 at which half of the measured share counts, R^2 the share of D that c explains"""
POSSIBLE: Final = 2.0
"""no inner loop takes back more of a correction; a larger quotient is noise, where c is tiny beside D"""
DISTINCT: Final = 0.05
"""share of |c|^2 that must be left once progress is regressed out, or c is progress of others"""
TYPICAL: Final = 4.0
"""most that one block counts for, in |c|^2 and in |D|^2, as a multiple of the median block"""


class Response:
    """The share g of each chunk, as one training process answers.

    Args:
        spans: the chunks of parameters in the flat vector, in order; chunks of buffers are left out.
    """

    def __init__(self, spans: Sequence[slice]) -> None:
        self._places = [_sampled(number, span.stop - span.start) for number, span in enumerate(spans)]
        self.begin()

    def begin(self) -> None:
        """Another training process begins."""
        count = len(self._places)
        self.gain = [0.0] * count
        self._landed: dict[int, Vector] = {}
        """by chunk: sampled corrections that the training process has added to x since the last round"""
        self._slot = 0
        """the last sealed slot, which may not be in x yet"""
        self._sealed: dict[int, Vector] = {}
        """by chunk: its sampled corrections"""
        self._before: list[Vector | None] = [None] * count
        """corrections that landed in the round before"""
        self._progress: list[Vector | None] = [None] * count

    def sealed(self, slot: int, parts: Mapping[int, Vector]) -> None:
        """The training process is to add `parts` to x: chunk -> its corrections. It has added the slot before."""
        for chunk in [*self._sealed]:
            self._land(chunk)
        count = len(self._places)
        self._slot = slot
        self._sealed = {chunk: part[self._places[chunk]] for chunk, part in parts.items() if chunk < count}

    def _land(self, chunk: int) -> None:
        """The training process has added the sealed slot to x on `chunk`."""
        part = self._sealed.pop(chunk, None)
        if part is not None:
            self._landed[chunk] = part + self._landed[chunk] if chunk in self._landed else part

    def measure(
        self, chunk: int, applied: int, x: Vector, late: Vector, a: Vector, part: float, warm: bool = False
    ) -> float:
        """g of a chunk at the end of a round.

        Args:
            applied: number of the last slot in the snapshot.
            x: the snapshot of this chunk.
            late: corrections that are not inside x, or empty.
            a: its anchor.
            part: length of the round, as a share of a usual one.
            warm: a short round of the warm start, which shows nothing of longer ones.
        """
        places = self._places[chunk]
        d = a[places] - x[places]
        if len(late):
            d -= late[places]
        if self._slot <= applied:
            self._land(chunk)
        got = self._landed.pop(chunk, None)
        if got is None:
            got = np.zeros_like(d)
        if warm:
            return 0.0
        before, progress = self._before[chunk], self._progress[chunk]
        self._before[chunk] = got
        self._progress[chunk] = d if progress is None else PROGRESS * progress + (1.0 - PROGRESS) * d
        if part >= SHORTEST and before is not None and progress is not None:
            taken = _taken_back(d, before, progress, np.arange(0, len(d), BLOCK))
            if taken is None:
                self.gain[chunk] *= UNSEEN
            else:
                self.gain[chunk] = max(taken, KEPT * self.gain[chunk] + (1.0 - KEPT) * taken)
        return self.gain[chunk]


def _sampled(chunk: int, size: int) -> NDArray[np.int64]:
    """Indices of the sampled parameters of a chunk, block after block."""
    blocks = -(-size // BLOCK)
    chosen = np.sort(np.random.default_rng(chunk).choice(blocks, min(blocks, SAMPLE), replace=False))
    places = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    return places[places < size]


def _taken_back(d: Vector, c: Vector, progress: Vector, starts: NDArray[np.int64]) -> float | None:
    """The share of c that d takes back, weighted by how much of d it explains. None: nothing has landed."""

    def by_block(one: Vector, other: Vector) -> NDArray[np.float64]:
        return np.add.reduceat(one.astype(np.float64) * other, starts)

    dd, cc = by_block(d, d), by_block(c, c)
    if not (cc.any() and np.isfinite(dd).all() and np.isfinite(cc).all()):
        return None
    # A fast scalar would decide for its chunk otherwise.
    weights = np.minimum(_tamed(dd), _tamed(cc))
    products = ((d, c), (c, c), (d, d), (progress, progress), (d, progress), (c, progress))
    num, den, left, pp, dp, cp = (float(weights @ by_block(*pair)) for pair in products)
    whole = den
    if pp > 0.0:
        num, den, left = num - dp * cp / pp, den - cp * cp / pp, left - dp * dp / pp
    if not den > DISTINCT * whole:
        return 0.0
    share = abs(num / den)
    if share > POSSIBLE:
        return 0.0
    explained = num * num / (den * left) if left > 0.0 else 0.0
    return share * explained / (explained + GATE)


def _tamed(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that hold each block to TYPICAL usual ones."""
    known = squares[squares > 0.0]
    most = TYPICAL * float(np.median(known)) if len(known) else 0.0
    return np.where(squares > most, most / np.where(squares > 0.0, squares, 1.0), 1.0)
