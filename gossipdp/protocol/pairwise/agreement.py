"""Whether a peer that closes holds the mean of all: what its own exchanges show (algorithms section 12).

A member is near if its last whole difference was within TOLERANCE of the usual distance, and this anchor has not moved
by more since. A member is an outlier if a difference was beyond the bound, so that nothing of it was mixed. Where there
are outliers, a peer agrees only as part of a majority: it has mixed with more than half of the members. Partners,
messages and vectors are unknown here.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Final

__all__ = ["NEAR", "TOLERANCE", "Agreement"]

TOLERANCE: Final = 1e-3
"""distance of two anchors that agree, as a share of the usual one"""
NEAR: Final = 2
"""near exchanges in a row, with as many members where there are as many"""
DECAY: Final = 0.7
"""weight of earlier distances in the usual one"""


class Agreement:
    """The judgement of one peer."""

    def __init__(self) -> None:
        self.usual = self.last = math.nan
        """distance of two anchors at the end of the training, and at the last whole exchange; RMS per parameter"""
        self.outliers: set[bytes] = set()
        self._near: set[bytes] = set()
        self._mixed: set[bytes] = set()
        """members with which a whole difference was mixed"""
        self._row = 0
        """near exchanges in a row"""
        self._trained = False
        """the training has told the usual distance"""

    def measured(self, distance: float) -> None:
        """An exchange of the training has measured this distance, RMS per parameter."""
        self.usual = DECAY * self.usual + (1.0 - DECAY) * distance if self._trained else distance
        self._trained = True

    def exchanged(self, partner: bytes, distance: float, moved: float, *, outlier: bool, first: bool) -> None:
        """An exchange of the closing is over.

        Args:
            distance: of the two anchors before it, RMS per parameter; NaN unless all chunks were compared.
            moved: of what was mixed, RMS per parameter.
            outlier: a difference was beyond the bound.
            first: in the first cycle. It shows the usual distance if the training has told none.
        """
        whole = not outlier and not math.isnan(distance)
        if outlier:
            self.outliers.add(partner)
        elif whole:
            self.outliers.discard(partner)
            self._mixed.add(partner)
            self.last = distance
            if first and not self._trained and not distance <= self.usual:
                self.usual = distance
        if whole and distance <= TOLERANCE * self.usual:
            self._near.add(partner)
            self._row += 1
        elif moved > 0.0 and not moved <= TOLERANCE * self.usual:
            self.disturbed()

    def disturbed(self) -> None:
        """This anchor has moved by an unknown distance."""
        self._near.clear()
        self._row = 0

    def is_far(self, member: bytes) -> bool:
        """Whether an exchange with this member may still bring something."""
        return member not in self._near and member not in self.outliers

    def holds(self, reached: Set[bytes], size: int, *, all_near: bool) -> bool:
        """Whether this peer holds the mean, as far as it can know.

        Args:
            reached: the other members that it can meet.
            size: members that it could meet when the schedule began, this peer included.
            all_near: every one of `reached` has to be near, because no schedule spreads the mean.
        """
        if self.outliers and 2 * (1 + len(self._mixed)) <= size:
            return False
        others = reached - self.outliers
        if all_near:
            return bool(self._near) and self._near >= others
        return self._row >= NEAR and len(self._near) >= min(NEAR, len(others))

    def holds_alone(self, exchanges: int) -> bool:
        """The same once no other member is left, after this number of exchanges."""
        return exchanges == 0 or bool(self._near)

    def begin_anew(self, there: Set[bytes]) -> None:
        """Other members close now: what was near may not hold their mean."""
        self._mixed &= there
        if there:
            self.disturbed()
