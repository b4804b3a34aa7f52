"""How fast this peer trains, against the others: H is proportional to it, so that all rounds last as long (algorithms
section 8: a slow host takes fewer steps a round, and is as often met as a fast one).

Each peer measures itself, in steps a second of the middle one of its last rounds: an evaluation, a checkpoint or a
pause now and then counts nowhere. It says so in its pings and in the answers to others', and compares with what
members, near ones and far ones, have said last: all that it hears, once each has been pinged. Everybody speaks for
itself alone, and the median moves little by one that lies or is far off. Half of those heard in league, or a single one
where there is no other, can make a peer take short rounds, down to `SLOWEST`, each of which lets in as much as a usual
one, or long ones, up to `FASTEST`. No message is here, and no vector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median, median_low
from typing import Final

__all__ = ["FASTEST", "SLOWEST", "Speed", "settle"]

SLOWEST: Final = 1 / 16
"""of the median's H, at the least"""
FASTEST: Final = 2.0
"""and at the most: partners are let in by what one moves oneself (`pairwise`), so a peer that moves on much further
than most in a round leads them for ever; in shorter rounds it is held back more often"""
ROUNDS: Final = 8
"""of this peer, at the least, of which the middle one says how fast it is"""
WINDOW: Final = 60.0
"""seconds of which all rounds count: on a machine that others work on, too, eight short ones say little"""
MOST: Final = 64
"""of them"""
LEAST: Final = 2
"""of them before it is known"""
SAME: Final = 0.1
"""who is so near to the median is as fast"""
CHANGE: Final = 0.2
"""a speed further off than this is taken; nearer ones may be noise"""


class Speed:
    """`own`: steps a second, 0 while that is not known, or none are made. `factor`: that against the median of all,
    itself among them; 1 while it is not known.

    others(lasting, now): steps a second of those that train, or pause, or cannot be heard, for less than `lasting`
    seconds, in which this peer made its last rounds. Where all pause together nobody's word is lost by it, nor by a cut
    that is soon over.
    """

    def __init__(self, others: Callable[[float, float], Sequence[float]]) -> None:
        self._others = others
        self._rounds: deque[tuple[float, float]] = deque(maxlen=MOST)
        """when each of the last ones ended, and seconds a step in it"""
        self.own, self.factor = 0.0, 1.0

    def trained(self, seconds: float, now: float) -> None:
        """An own round is over, in which a step took so many seconds."""
        rounds = self._rounds
        rounds.append((now, seconds))
        while len(rounds) > ROUNDS and rounds[0][0] < now - WINDOW:
            rounds.popleft()
        middle = median_low(lasted for _, lasted in rounds)
        self.own = 1.0 / middle if middle > 0.0 and len(rounds) >= LEAST else 0.0
        self.factor = settle(self.factor, self.own, self._others(now - rounds[0][0], now))

    def rests(self) -> None:
        """No rounds are made for now."""
        self.own = 0.0


def settle(before: float, own: float, others: Sequence[float]) -> float:
    """The factor that follows `before` at these speeds; own 0 is unknown."""
    if not others or not own:
        return 1.0
    factor = min(FASTEST, max(SLOWEST, own / median([own, *others])))
    if abs(factor - 1.0) <= SAME:
        return 1.0
    return factor if abs(factor - before) > CHANGE * before else before
