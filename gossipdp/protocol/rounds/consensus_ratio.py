"""The distance between peers relative to their movement. A measurement only: nothing depends on it."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["ConsensusRatio"]

RATIO_DECAY: Final = 0.7
"""weight of the old mean, at each round or exchange"""
FARTHEST: Final = 4.0
"""largest ratio that one exchange counts as, so that one bad partner does not decide the mean"""


class ConsensusRatio:
    """The distance between peers relative to their movement (Kong et al. 2021, arXiv 2102.04761).

        R = EMA||delta|| / (sqrt2 EMA||y - a||)         delta = a_i - a_j before mixing

    y is the anchor after the outer step and a the one before. Independent steps and one random partner a round give
    R = sqrt(1 / (1 - rho)), at most sqrt2 for any N. A larger R says that disagreement builds up from round to round.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again: the model is another peer's, or no other peer is there."""
        self._distance = self._movement = math.nan

    @property
    def value(self) -> float:
        """R; NaN until an exchange and an outer step have been measured."""
        return self.of(self._distance)

    def of(self, distance: float) -> float:
        """R of one distance, RMS per parameter, without a bound; NaN until an outer step has been measured."""
        return distance / (math.sqrt(2.0) * self._movement) if self._movement > 0.0 else math.nan

    def exchanged(self, distance: float) -> None:
        """An exchange of the whole vector has measured the distance of the two anchors, RMS per parameter."""
        if math.isfinite(distance) and self._movement > 0.0:
            self._distance = _mean(self._distance, min(distance, FARTHEST * math.sqrt(2.0) * self._movement))

    def stepped(self, movement: float) -> None:
        """An outer step has moved the anchor. movement: RMS per parameter."""
        if math.isfinite(movement):
            self._movement = _mean(self._movement, movement)


def _mean(mean: float, latest: float) -> float:
    return latest if math.isnan(mean) else RATIO_DECAY * mean + (1.0 - RATIO_DECAY) * latest
