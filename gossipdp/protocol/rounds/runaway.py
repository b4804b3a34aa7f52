"""The last line of defence: a peer whose training runs away steps as if alone until that is over.

A lone peer is the bare optimizer. So gossip makes no divergence worse, and the peer harms no other. |D|, the length of
a round's own movement, tells. Warm-ups lengthen it slowly, higher rates and thawed layers in one round. A loop that
runs away lengthens it round after round, steadily or in swings.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from itertools import pairwise
from typing import Final

__all__ = ["Runaway"]

WINDOW: Final = 32
"""rounds whose median |D| is the usual one"""
LEAST: Final = 8
"""rounds that must have been seen before |D| can be unusual"""
RECENT: Final = 3
"""rounds in a row that must be unusual"""
BEYOND: Final = 8.0
"""|D| of an unusual round, in units of the usual one"""
SHARE: Final = 16.0
"""movement of the anchor, in units of |D|, beyond which momentum moves it, and |D| may be rounding"""
FACTOR: Final = 1.3
"""growth of |D| that a calm round stays below"""
CALM: Final = 4
"""rounds in a row that are not longer than the CALM before them by FACTOR, after which the peer comes back; twice as
many at each relapse"""
LONGEST: Final = 64
"""most of those rounds; after as many without a relapse, earlier ones count less"""
FALLING: Final = (0.25, 0.0625, 0.0)
"""weight of the first rounds alone, as a share of the usual one; the last one stays"""
RISING: Final = 2.0
"""growth of the weight in each round after that"""


class Runaway:
    """Follows |D| of one peer, round by round."""

    def __init__(self) -> None:
        self._lengths: deque[float] = deque(maxlen=WINDOW)
        """|D| of the last rounds, RMS per parameter"""
        self.begin()

    @property
    def again(self) -> bool:
        """It ran away not long ago, too."""
        return self._needed > CALM

    def begin(self) -> None:
        """Another model or training process: what was measured does not count."""
        self.active = False
        """the peer steps as if alone"""
        self.share = 1.0
        """weight of its exchanges, as a share of the usual one"""
        self._lengths.clear()
        self._least = LEAST
        self._most = 1.0
        """share to come back to; each relapse halves it"""
        self._rounds = self._calm = 0
        """rounds since `active` changed, and those in a row without growth"""
        self._needed = CALM

    def other_rounds(self) -> None:
        """Rounds have another number of steps from now on."""
        self._lengths.clear()
        self._least = LEAST

    def round_done(self, length: float, movement: float, *, alone: bool) -> bool:
        """A round is over.

        Args:
            length: |D|, RMS per parameter, scaled to a usual round.
            movement: of the anchor, in the same way.
            alone: no exchange has mixed anything lately, so nothing can feed back.

        Returns:
            Whether `active` has changed.
        """
        self._lengths.append(length)
        self._rounds += 1
        if self.active:
            return self._while_active(length)
        if not alone and SHARE * length >= movement and _grows([*self._lengths], self._least):
            self.active, self.share, self._rounds, self._calm = True, FALLING[0], 0, 0
            return True
        if self._rounds % LONGEST == 0:
            self._needed, self._most = CALM, min(1.0, RISING * self._most)
        self.share = min(self._most, RISING * self.share)
        return False

    def _while_active(self, length: float) -> bool:
        self.share = FALLING[min(self._rounds, len(FALLING) - 1)]
        before = [*self._lengths][-1 - CALM : -1]
        self._calm = self._calm + 1 if before and length < FACTOR * max(before) else 0
        if self._calm < self._needed:
            return False
        self.active, self.share, self._rounds = False, FALLING[1], 0
        self._needed, self._most = min(LONGEST, 2 * self._needed), max(FALLING[1], self._most / RISING)
        # What was usual before is not usual any more, after a rate was raised, for example.
        alone = [*self._lengths][-CALM:]
        self._lengths.clear()
        self._lengths.extend(alone)
        self._least = CALM
        return True


def _grows(lengths: list[float], least: int) -> bool:
    """Whether |D| has grown beyond all that is usual, over several rounds.

    Args:
        least: rounds that must have been seen before the recent ones.
    """
    earlier, recent = lengths[:-RECENT], lengths[-RECENT:]
    usual = statistics.median(earlier) if len(earlier) >= least else 0.0
    if not (usual > 0.0 and BEYOND * usual <= min(recent) and math.isfinite(max(recent))):
        return False
    steepest = max(after / before if before > 0.0 else math.inf for before, after in pairwise(lengths))
    # One round explains no more than half of the growth, in decades, or it was a jump.
    return steepest * steepest <= max(recent) / usual
