"""How many members that a peer does not know yet each member may introduce to it.

A key costs nothing, so one member could introduce members without end that do not exist. They would take up probes,
offers, logs and memory. Two limits hold that back. One is on what a member introduces in a minute. The other is on all
live members that a peer has not heard from itself: their number may grow with the number of those it has heard from.
Both are far above what an honest network needs. A member that is refused is not lost: it counts when it speaks itself,
and comparisons of views offer it again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Introductions", "most_hearsay"]

A_MINUTE: Final = 600
"""members that one member introduces in a minute, at the most"""
_SOURCES: Final = 1024
"""members whose introductions are counted at one time"""


def most_hearsay(heard: int) -> int:
    """Live members known only from others, at the most, of a peer that has heard from `heard` members itself."""
    return 64 + 16 * heard


class Introductions:
    """Counts introductions by member, from the first one of each minute on."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[float, int]] = {}

    def allows(self, source: bytes, now: float) -> bool:
        """Count one introduction by `source`; False if it has made too many."""
        since, count = self._counts.get(source, (now, 0))
        if now >= since + 60.0:
            since, count = now, 0
        self._counts.pop(source, None)
        self._counts[source] = since, count + 1
        if len(self._counts) > _SOURCES:
            del self._counts[next(iter(self._counts))]
        return count < A_MINUTE
