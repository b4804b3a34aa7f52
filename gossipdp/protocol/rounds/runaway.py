"""The last line of defence: a peer whose training runs away steps as if alone until that is over.

A lone peer is the bare optimizer. So gossip makes no divergence worse, and the peer harms no other. |D|, the length of
a round's own movement, tells. Warm-ups, higher rates and thawed layers lengthen it once, or ever more slowly. A loop
that runs away lengthens it by a factor in each round.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

__all__ = ["Runaway"]

WINDOW: Final = 16
"""rounds whose median |D| is the usual one"""
GROWING: Final = 4
"""rounds in a row in which |D| must grow"""
FACTOR: Final = 1.3
"""smallest growth of |D| in each of them"""
BEYOND: Final = 8.0
"""|D| in the last of them, in units of the usual one"""
SHARE: Final = 16.0
"""movement of the anchor, in units of |D|, beyond which momentum moves it, and |D| may be rounding"""
CALM: Final = 4
"""rounds in a row that are not longer than the CALM before them by FACTOR, after which the peer comes back; twice as
many at each relapse"""
LONGEST: Final = 64
FALLING: Final = (0.25, 0.0625, 0.0)
"""weight of the first rounds alone, as a share of the usual one; the last one stays"""
RISING: Final = 2.0
"""growth of the weight in each round after that"""


class Runaway:
    """Follows |D| of one peer, round by round."""

    def __init__(self) -> None:
        self.active = False
        """the peer steps as if alone"""
        self.share = 1.0
        """weight of its exchanges, as a share of the usual one"""
        self._lengths: deque[float] = deque(maxlen=WINDOW)
        """|D| of the last rounds, RMS per parameter"""
        self._rounds = self._calm = 0
        """rounds since the peer steps as if alone, and those in a row without growth"""
        self._needed = CALM

    def begin(self) -> None:
        """Another model or training process: what was measured does not count."""
        self.active, self.share, self._needed = False, 1.0, CALM
        self._lengths.clear()

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
        if self.active:
            return self._while_active()
        if not alone and SHARE * length >= movement and _grows(self._lengths):
            self.active, self.share, self._rounds, self._calm = True, FALLING[0], 0, 0
            return True
        self.share = min(1.0, RISING * self.share)
        if len(self._lengths) == WINDOW:
            self._needed = CALM
        return False

    def _while_active(self) -> bool:
        self._rounds += 1
        self.share = FALLING[min(self._rounds, len(FALLING) - 1)]
        *before, last = list(self._lengths)[-1 - CALM :]
        self._calm = self._calm + 1 if last < FACTOR * max(before) else 0
        if self._calm < self._needed:
            return False
        self.active, self.share, self._needed = False, FALLING[1], min(LONGEST, 2 * self._needed)
        # What was usual before a rate was raised, for example, is not usual any more.
        self._lengths.clear()
        return True


def _grows(lengths: deque[float]) -> bool:
    """Whether |D| has grown by a factor in each of the last rounds, and beyond all that is usual."""
    if len(lengths) <= 2 * GROWING:
        return False
    *earlier, first = list(lengths)[:-GROWING]
    last = list(lengths)[-GROWING:]
    steps = zip([first, *last], last, strict=False)
    usual = statistics.median([*earlier, first])
    grown = all(after >= FACTOR * before for before, after in steps)
    return grown and usual > 0.0 and last[-1] >= BEYOND * usual and math.isfinite(last[-1])
