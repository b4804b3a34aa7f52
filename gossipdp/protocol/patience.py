"""How long to wait for an answer before asking again, learnt from the answers so far.

Patience is twice the time of the last answer (Jacobson, "Congestion avoidance and control", SIGCOMM 1988). The answer
to a repeated request does not tell which of the requests it answers. It is no measure, but patience that was needed is
kept (Karn & Partridge, "Improving round-trip time estimates in reliable transport protocols", SIGCOMM 1987).
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Patience", "backed_off"]

MARGIN: Final = 2.0
"""Patience relative to the time of an answer."""
MOST: Final = 16.0
"""Silence alone multiplies patience by at most this factor."""


class Patience:
    """Seconds to wait for an answer, learnt from how long earlier answers took.

    Args:
        least: Seconds to wait at least, and until the first answer.
        most: Seconds to wait at most, apart from silence.
    """

    def __init__(self, least: float, most: float = math.inf) -> None:
        self._least, self._most = least, most
        self.usual = 0.0
        """Seconds that an answer takes. 0 until one came."""

    @property
    def seconds(self) -> float:
        """Seconds to wait for an answer."""
        return min(max(self._least, MARGIN * self.usual), self._most)

    def answered(self, seconds: float) -> None:
        """A request that was made once got its answer after `seconds`."""
        self.usual = seconds

    def needed(self, seconds: float) -> None:
        """A repeated request got an answer `seconds` after it was first made."""
        self.usual = max(self.usual, seconds / MARGIN)


def backed_off(seconds: float, silences: int) -> float:
    """Seconds to wait after this number of silences in a row: doubled by each."""
    return seconds * min(MOST, 2.0**silences)
