"""Samples a second of each member. Reports come in steps, because each covers a whole round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gossipdp.protocol.wire.messages import Progress

__all__ = ["SampleRates"]

WINDOW: Final = 60.0
"""seconds over which a rate is taken, if they hold at least ROUNDS rounds"""
ROUNDS: Final = 4
OVERDUE: Final = 3.0
"""a member that tells no new samples for this many of its longest rounds of late does not train now"""
PATIENCE: Final = 10.0
"""least seconds until then: reports of short rounds come late"""
TURN: Final = 0.5
"""further seconds for each member: members report in turn"""


@dataclass
class _Member:
    samples: int
    steps: deque[tuple[float, int]] = field(default_factory=deque)
    """times at which its samples rose, and the new totals"""

    def silent(self, now: float, patience: float) -> bool:
        """Whether its next report is long overdue. Nobody knows before its first whole round."""
        if len(self.steps) < 2:
            return False
        longest = max(later - earlier for (earlier, _), (later, _) in pairwise(self.steps))
        return now - self.steps[-1][0] > max(patience, OVERDUE * longest)


class SampleRates:
    """Feed it all reports at least twice a round."""

    def __init__(self) -> None:
        self._members: dict[bytes, _Member] = {}

    def look(self, reports: Iterable[Progress], now: float) -> None:
        """Take over all reports. Members without one are forgotten."""
        before, self._members, patience = self._members, {}, self._patience()
        for report in reports:
            member = self._members[report.id] = before.get(report.id) or _Member(report.samples)
            if report.samples == member.samples:
                continue
            if report.samples < member.samples or member.silent(now, patience):
                member.steps.clear()
            member.samples = report.samples
            member.steps.append((now, report.samples))
            while len(member.steps) > ROUNDS + 1 and member.steps[-1][0] - member.steps[1][0] >= WINDOW:
                member.steps.popleft()

    def of(self, peer: bytes, now: float) -> float | None:
        """Samples a second of `peer`; None before its first whole round, and 0 while it tells no new samples."""
        member = self._members.get(peer)
        if member is None or len(member.steps) < 2:
            return None
        if member.silent(now, self._patience()):
            return 0.0
        (first, least), (last, most) = member.steps[0], member.steps[-1]
        return (most - least) / (last - first)

    def _patience(self) -> float:
        """Seconds without new samples that are no trouble, however short the rounds are."""
        return PATIENCE + TURN * len(self._members)
