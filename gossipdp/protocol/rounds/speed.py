"""This peer's training speed relative to the other peers'.

H is proportional to speed, so that all peers' rounds last equally long (algorithms section 8). A slow host takes fewer
steps a round, and has as many exchanges as a fast one.

Each peer measures its own speed: steps a second in the median of its last rounds. So an evaluation, a checkpoint or a
pause now and then does not count. Pings and their answers carry the speed. A peer compares with the latest speed of
every member that it hears, once it has pinged them.

A peer reports its own speed only, and one false or extreme report moves the median little. Half of the reporting peers,
if they conspire, can shorten a peer's rounds down to `SLOWEST` or lengthen them up to `FASTEST`. So can a single peer
where there is no other. A short round lets in as much as a usual one. No message or vector is handled here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median, median_low
from typing import Final

from gossipdp.protocol.wire.messages import FASTEST_RATE, SLOWEST_RATE

__all__ = ["FASTEST", "SLOWEST", "Speed", "settle", "spread"]

SLOWEST: Final = 1 / 16
"""smallest factor: a share of the median's H"""
FASTEST: Final = 2.0
"""largest factor. A peer limits each partner's influence by its own movement in a round (`pairwise`). So one that moves
much further than most would lead them for ever. In shorter rounds others pull it back more often."""
ROUNDS: Final = 8
"""rounds of this peer whose median counts, at least"""
WINDOW: Final = 60.0
"""seconds whose rounds all count, because eight short ones say little on a shared machine"""
MOST: Final = 64
"""rounds whose median counts, at most"""
LEAST: Final = 2
"""rounds before the speed is known"""
SAME: Final = 0.1
"""relative distance to the median within which the factor is 1"""
CHANGE: Final = 0.2
"""smallest relative change that is followed; smaller ones may be noise"""


class Speed:
    """The speed of one peer.

    `own` is in steps a second; 0 while it is unknown or no steps are made. `factor` is `own` relative to the median of
    all peers, this one included; 1 while unknown. `spread` is that of all these speeds, and `peers` their number.
    """

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, float]] = deque(maxlen=MOST)
        """end of each of the last rounds, and seconds a step in it"""
        self.own, self.factor, self.spread, self.peers = 0.0, 1.0, 0.0, 1

    def trained(self, seconds: float, now: float) -> float:
        """A round of this peer is over, in which a step took `seconds`.

        Returns:
            Seconds since the first round that counts. In `compare` members count that have paused, or were not heard,
            for less than that. So their reports outlive a pause of all peers, and a short network cut.
        """
        rounds = self._rounds
        rounds.append((now, seconds))
        while len(rounds) > ROUNDS and rounds[0][0] < now - WINDOW:
            rounds.popleft()
        middle = median_low(lasted for _, lasted in rounds)
        known = middle > 0.0 and len(rounds) >= LEAST
        self.own = min(FASTEST_RATE, max(SLOWEST_RATE, 1.0 / middle)) if known else 0.0
        return now - rounds[0][0]

    def compare(self, others: Sequence[float]) -> None:
        """Follow the speeds of other members, in steps a second."""
        self.peers = 1 + len(others)
        self.factor = settle(self.factor, self.own, others)
        self.spread = spread([self.own, *others]) if self.own else 0.0

    def rests(self) -> None:
        """This peer makes no rounds for now."""
        self.own = 0.0


def spread(speeds: Sequence[float]) -> float:
    """Doublings by which these speeds are apart from their median, on average. One speed counts four at most."""
    middle = median(speeds)
    return sum(min(-math.log2(SLOWEST), abs(math.log2(speed / middle))) for speed in speeds) / len(speeds)


def settle(before: float, own: float, others: Sequence[float]) -> float:
    """The factor that follows `before` at these speeds, in steps a second. own 0 is unknown."""
    if not others or not own:
        return 1.0
    factor = min(FASTEST, max(SLOWEST, own / median([own, *others])))
    if abs(factor - 1.0) <= SAME:
        return 1.0
    return factor if abs(factor - before) > CHANGE * before else before
