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


@dataclass
class _Member:
    samples: int
    steps: deque[tuple[float, int]] = field(default_factory=deque)
    """times at which its samples rose, and the new totals"""


class SampleRates:
    """Feed it all reports at least twice a round."""

    def __init__(self) -> None:
        self._members: dict[bytes, _Member] = {}

    def look(self, reports: Iterable[Progress], now: float) -> None:
        """Take over all reports. Members without one are forgotten."""
        before, self._members = self._members, {}
        for report in reports:
            member = self._members[report.id] = before.get(report.id) or _Member(report.samples)
            if report.samples == member.samples:
                continue
            if report.samples < member.samples:
                member.steps.clear()
            member.samples = report.samples
            member.steps.append((now, report.samples))
            while len(member.steps) > ROUNDS + 1 and member.steps[-1][0] - member.steps[1][0] >= WINDOW:
                member.steps.popleft()

    def of(self, peer: bytes, now: float) -> float | None:
        """Samples a second of `peer`; None before its first whole round. It falls while a report is overdue."""
        member = self._members.get(peer)
        if member is None or len(member.steps) < 2:
            return None
        (first, least), (last, most) = member.steps[0], member.steps[-1]
        longest = max(later - earlier for (earlier, _), (later, _) in pairwise(member.steps))
        return (most - least) / max(last - first, now - first - 2.0 * longest)
