"""How far the claim of one member takes the network's clock.

A member's report says its clock, and a lie would end every loop over the network's clock. So the clock that two members
with a voice have reached is believed at once, and one that a single member claims only as fast as training could be: at
most `FASTER` times the fastest speed known here. A reported speed counts up to `MOST_APART` times the median. A peer
that knows no speed yet, such as a joiner, believes any claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

__all__ = ["FASTER", "MOST_APART", "ClockClaims", "fastest", "network_clock"]

FASTER: Final = 4.0
"""times the fastest known speed at which a single member's claim takes the clock ahead"""
MOST_APART: Final = 16.0
"""times the median speed that a reported speed counts at most"""
LONGEST: Final = 60.0
"""seconds without a report that count at most: what a peer slept through is no room for a lie"""
LEAST: Final = 100
"""steps that any claim may be ahead: the first reports come in bursts"""


def network_clock(clock: int, claims: Sequence[int], most: float) -> int:
    """The network's clock in steps after `claims` of members with a voice.

    Args:
        clock: in steps, before.
        most: steps by which a single claim may take it ahead.
    """
    return max(clock, _agreed(claims), int(min(max(claims, default=0), clock + most)))


def _agreed(claims: Sequence[int]) -> int:
    """The furthest clock that two members have reached."""
    return sorted(claims)[-2] if len(claims) > 1 else 0


def fastest(speeds: Sequence[float]) -> float:
    """The fastest of these speeds that may be true, in steps a second; 0 without any."""
    return min(max(speeds), MOST_APART * median(speeds)) if speeds else 0.0


class ClockClaims:
    """Counts the time in which a single claim may take the clock ahead."""

    def __init__(self, now: float) -> None:
        self._at, self._room = now, float(LEAST)

    def heard(self, clock: int, claims: Sequence[int], speeds: Sequence[float], now: float) -> int:
        """The network's clock in steps after reports of members with a voice.

        Args:
            clock: in steps, before.
            claims: the clocks that these members report.
            speeds: steps a second of this peer and of these members, as far as they are known.
        """
        speed = FASTER * fastest(speeds)
        if not speed:
            return max(clock, 0, *claims)
        self._room = min(self._room + speed * min(LONGEST, now - self._at), LEAST + speed * LONGEST)
        self._at = now
        reached = network_clock(clock, claims, self._room)
        self._room -= reached - min(reached, max(clock, _agreed(claims)))
        return reached
