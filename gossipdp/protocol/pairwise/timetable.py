"""How many exchanges a round makes, and along which schedule, if any.

Peers that follow a schedule must agree on the number of the round. Their rounds last about as long, and begin at
different moments. So each counts its own rounds, and compares the count with the median clock of all members. If it is
more than a round off, it takes the median's. That holds at unequal speeds, because the median peer makes the usual
steps in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Final, NamedTuple

from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.rounds.pacing import FULL, Pacing

__all__ = ["CROWDED", "RoundPlan", "Timetable", "exchanges_per_round"]

CROWDED: Final = 0.5
"""share of a round that an exchange fills, from which all rounds follow a schedule"""
PATIENT: Final = 0.5
"""share of a crowded round for which the scheduled partner is waited for. After a few rounds the exchanges of all peers
begin together"""


class RoundPlan(NamedTuple):
    """The exchanges of one round."""

    exchanges: int
    schedule: Schedule | None
    """None: partners are random"""
    number: int
    """of the round, the same at all peers that follow the schedule"""
    patience: float
    """seconds for which the scheduled partner is waited for, at least"""


def exchanges_per_round(members: int, most: int, fill: float = 0.0) -> int:
    """min(most, ceil(log2 N)), and fewer if they do not fit (algorithms section 6).

    Args:
        most: exchanges, at most.
        fill: share of a round that one exchange takes.
    """
    several = min(most, max(1, (members - 1).bit_length()))
    return max(1, min(several, int(FULL / fill))) if fill > 0.0 else several


class Timetable:
    """Decides on each round's exchanges.

    Args:
        policy: "hypercube", "base2", or "" for random matching.
        early: exchanges of an early round, at most. A round of the warm start makes one.
        late: exchanges of a later round, at most.
    """

    def __init__(
        self,
        membership: Membership,
        progress: ProgressBoard,
        pacing: Pacing,
        *,
        policy: str,
        early: int,
        late: int,
    ) -> None:
        self._membership, self._progress, self._pacing = membership, progress, pacing
        self._policy, self._early, self._late = policy, early, late
        self._followed: Schedule | None = None
        self._number = 0

    def plan(self, members: int, seed: bytes, now: float) -> RoundPlan:
        """Plan the round that begins.

        Args:
            members: peers that exchange, this one included.
            seed: the same for all peers of the network.
        """
        fill = self._pacing.fill
        early = self._pacing.early
        most = 1 if self._pacing.warming_up else self._early if early else self._late
        exchanges = exchanges_per_round(members, most, fill)
        # Where an exchange fills its round, the few members that come free at one moment would meet again and again. In
        # other late rounds random matching agrees nearly as well, and favours near members.
        crowded = fill >= CROWDED
        follows = self._policy == "base2" or (self._policy == "hypercube" and (early or crowded))
        schedule = self._schedule(seed, now, any_number=crowded or self._policy == "base2") if follows else None
        patience = PATIENT * self._pacing.usual_round if crowded and schedule else 0.0
        return RoundPlan(exchanges, schedule, self._number, patience)

    def _schedule(self, seed: bytes, now: float, *, any_number: bool) -> Schedule | None:
        """The schedule of this round while the view is complete and fresh.

        Args:
            any_number: of members that train. Otherwise all members must, and their number be a power of two: the
                Base-2 graph leaves more noise between rounds than random matching does.
        """
        me = self._progress.mine
        reports = [self._progress.of(peer) for peer in self._membership.settled(now)]
        training = [report for report in reports if report is not None and report.steps > 0]
        members = tuple(report.id for report in training)
        exact = len(members) == len(reports) and not len(members) & (len(members) - 1)
        if self._pacing.warming_up or me.id not in members or not (any_number or exact):
            return None
        self._count(me.clock, [report.clock for report in training])
        if self._followed is None or self._followed.members != members:
            self._followed = Schedule(members, seed)
        return self._followed

    def _count(self, clock: int, clocks: Sequence[int]) -> None:
        """Count this round, and stay with the others. A peer may be one ahead until the median peer's round ends."""
        middle = median_low(clocks)
        usual = middle // self._pacing.usual_every
        if self._number + 1 - usual in (0, 1):
            self._number += 1
        else:
            self._number = usual + (clock > middle)
