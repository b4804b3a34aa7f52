"""How many exchanges a round makes, and along which schedule, if any."""

from __future__ import annotations

from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.rounds.pacing import Pacing

__all__ = ["Timetable", "exchanges_per_round"]


def exchanges_per_round(members: int, early: bool) -> int:
    """m = min(3, ceil(log2 N)) while the learning rate is high, then 1 (algorithms section 6)."""
    return min(3, max(1, (members - 1).bit_length())) if early else 1


class Timetable:
    """Decides on each round's exchanges.

    Args:
        policy: "hypercube", "base2", or "" for random matching.
        early_steps: steps of the network's clock with several exchanges a round.
        most: exchanges a round, at most.
    """

    def __init__(
        self,
        membership: Membership,
        progress: ProgressBoard,
        pacing: Pacing,
        *,
        policy: str,
        early_steps: int,
        most: int,
    ) -> None:
        self._membership, self._progress, self._pacing = membership, progress, pacing
        self._policy, self._early_steps, self._most = policy, early_steps, most
        self._followed: Schedule | None = None

    def plan(self, members: int, seed: bytes, now: float) -> tuple[int, Schedule | None]:
        """Exchanges of the round that begins, and the schedule they follow.

        Args:
            members: peers that exchange, this one included.
            seed: the same for all peers of the network.
        """
        clock = self._progress.mine.clock
        early = max(clock, self._progress.clock()) < self._early_steps
        # Later, at one exchange a round, random matching agrees nearly as well and favours near members. A peer whose
        # rounds are of another length cannot keep step with a schedule.
        follows = (early or self._policy == "base2") and self._pacing.speed == 1.0
        schedule = self._schedule(clock, seed, now) if follows else None
        return min(exchanges_per_round(members, early), self._most), schedule

    def _schedule(self, clock: int, seed: bytes, now: float) -> Schedule | None:
        """The schedule of this round while the view is complete and fresh, and all peers keep step."""
        members = self._membership.settled(now)
        if not self._policy or self._pacing.warming_up or not members:
            return None
        if self._policy == "hypercube" and len(members) & (len(members) - 1):
            # The Base-2 graph leaves more noise between rounds than random matching does
            # (simulations.lab.theory.matchings).
            return None
        reports = [self._progress.of(peer) for peer in members]
        if any(report is None or abs(report.clock - clock) > 2 * self._pacing.every for report in reports):
            return None
        if self._followed is None or self._followed.members != members:
            self._followed = Schedule(members, seed)
        return self._followed
