"""How fast this peer trains, against the others: H is proportional to it, so that all rounds last as long (algorithms
section 8: a slow host takes fewer steps a round, and is as often met as a fast one).

Speed is steps a second, from the reports of progress that are there anyhow, whatever a round's length is. A report is
as old as its way was long and counts whole rounds, so rates are of many of them. The median of all is everybody's
measure: who pauses, lies or is far off by itself moves it little. Half of them in league can make a peer take short
rounds, down to `SLOWEST`, each of which lets in as much as a usual one. No message is here, and no vector.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import deque
from statistics import median
from typing import Final, NamedTuple

from gossipdp.protocol.membership import Membership
from gossipdp.protocol.progress import ProgressBoard

__all__ = ["FASTEST", "SLOWEST", "Speed", "settle"]

SLOWEST: Final = 1 / 16
"""of the median's H, at the least"""
FASTEST: Final = 2.0
"""and at the most: partners are let in by what one moves oneself (`pairwise`), so a peer that moves on much further
than most in a round leads them for ever; in shorter rounds it is held back more often"""
SAMPLE: Final = 32
"""members looked at"""
MEASURED: Final = 8
"""of its rounds or of one's own, or probe intervals: a rate is measured over so many, for its ends may be off by one"""
OWN_ROUNDS: Final = 2
"""one's own: these ends are exact"""
STILL: Final = 3.0
"""times as long as its report should take: then a member stands still"""
SAME: Final = 0.1
"""who is so near to the median is as fast"""
CHANGE: Final = 0.2
"""a speed further off than this is taken; nearer ones may be noise"""


class _Look(NamedTuple):
    """A report that was new, as it was seen."""

    at: float
    number: int
    """of the look"""
    steps: int
    rounds: int


class _Rate:
    """Of one peer. `value`: steps a second; NaN until it is known.

    Args:
        least: of so many rounds, or over so many looks, a rate is measured.
        apart: seconds between two looks that are kept, at the least.
    """

    def __init__(self, least: int, apart: float) -> None:
        self.value = math.nan
        self._least, self._apart = least, apart
        self._steps = -1
        self._lasts = 0.0
        """seconds that the latest report should have taken"""
        self._looks: deque[_Look] = deque(maxlen=MEASURED + 1)
        self._anew = False
        """it has stood still, and is not measured again yet"""

    def look(self, look: _Look, interval: float) -> None:
        """interval: seconds since the look before."""
        before, self._steps = self._steps, look.steps
        if before < 0 or look.steps <= before:
            return  # when the first one was made is not known
        if self.value > 0.0:
            self._lasts = (look.steps - before) / self.value
            if self.stands_still(look.at, interval) and not self._anew:
                # A pause says nothing of speed, but what looks like one again and again is the speed.
                self._looks.clear()
                self._anew = True
        if not self._looks or look.at - self._looks[-1].at >= self._apart:
            self._looks.append(look)
            self._measure()

    def _measure(self) -> None:
        first, last = self._looks[0], self._looks[-1]
        long = last.number - first.number >= self._least or last.rounds - first.rounds >= self._least
        seconds = last.at - first.at
        if long and seconds > 0.0 and seconds >= self._least * self._apart:
            self.value = (last.steps - first.steps) / seconds
            self._anew = False

    def stands_still(self, now: float, interval: float) -> bool:
        return bool(self._looks) and now - self._looks[-1].at > STILL * max(self._lasts, interval, self._apart)


class Speed:
    """`factor`: this peer's steps a second against the median of all, itself among them; 1 while that is not known."""

    def __init__(self, membership: Membership, progress: ProgressBoard) -> None:
        self._membership, self._progress = membership, progress
        self._own = _Rate(OWN_ROUNDS, 0.0)
        self._others: dict[bytes, _Rate] = {}
        self._number = 0
        self._at = math.nan
        self.factor = 1.0

    def look(self, steps: int, now: float) -> None:
        """An own round is over; `steps` have been trained here since this process started."""
        self._number += 1
        interval, self._at = 0.0 if math.isnan(self._at) else now - self._at, now
        self._own.look(_Look(now, self._number, steps, self._number), 0.0)
        others: dict[bytes, _Rate] = {}
        apart = self._membership.config.probe_interval
        for peer in self._sample():
            report = self._progress.of(peer)
            if report is not None:
                others[peer] = self._others.get(peer) or _Rate(MEASURED, apart)
                others[peer].look(_Look(now, self._number, report.steps, report.rounds), interval)
        self._others = others
        going = [rate.value for rate in others.values() if not rate.stands_still(now, interval)]
        self.factor = settle(self.factor, self._own.value, [rate for rate in going if rate > 0.0])

    def _sample(self) -> list[bytes]:
        """Members alive: all, or those whose ids follow this peer's own, which are as good as any."""
        members = [member.id for member in self._membership.alive()]
        if len(members) <= SAMPLE:
            return members
        first = bisect(members, self._membership.me.id)
        return (members[first:] + members[:first])[:SAMPLE]


def settle(before: float, own: float, others: list[float]) -> float:
    """The factor that follows `before` at rates so high; NaN is unknown."""
    if not others or not own > 0.0:
        return 1.0
    factor = min(FASTEST, max(SLOWEST, own / median([own, *others])))
    if abs(factor - 1.0) <= SAME:
        return 1.0
    return factor if abs(factor - before) > CHANGE * before else before
