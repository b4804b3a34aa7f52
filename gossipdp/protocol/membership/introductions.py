"""How many members that a peer does not know yet each member may introduce to it.

A key costs nothing, so one member could introduce members without end that do not exist. They would take up probes,
offers, logs and memory. So what a member introduces in a minute is bounded, and more narrowly for live members, in
proportion to the members that this peer has heard itself. All live members that it never heard have a bound, too.
A member that is refused is not lost: it counts when it speaks itself, and comparisons of views offer it again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Introductions", "most_hearsay", "most_live"]

A_MINUTE: Final = 600
"""members that one member introduces in a minute, at the most"""
_SOURCES: Final = 1024
"""members whose introductions are counted at one time"""


def most_live(heard: int) -> int:
    """Live members that one member introduces in a minute, at the most, to a peer that has heard `heard` members."""
    return 64 + 16 * heard


def most_hearsay(heard: int) -> int:
    """Live members known only from others, at the most, of a peer that has heard `heard` members itself. Once such
    members were silent to its probes, `most_live` is the most."""
    return 1024 + 16 * heard


class Introductions:
    """Counts introductions by member, from the first one of each minute on."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[float, int, int]] = {}
        """member -> since when, how many, and how many of them alive"""

    def allows(self, source: bytes, heard: int, now: float, *, new: bool, live: bool) -> bool:
        """Count one introduction by `source`, unless it has made too many.

        Args:
            source: the member that introduces another.
            heard: members that this peer has heard itself.
            now: seconds.
            new: the other member is not known yet.
            live: the other member is said to live, and this peer did not know that.

        Returns:
            False if `source` has made too many.
        """
        since, count, alive = self._counts.get(source, (now, 0, 0))
        if now >= since + 60.0:
            since, count, alive = now, 0, 0
        if (new and count >= A_MINUTE) or (live and alive >= most_live(heard)):
            return False
        self._counts.pop(source, None)
        self._counts[source] = since, count + new, alive + live
        if len(self._counts) > _SOURCES:
            del self._counts[next(iter(self._counts))]
        return True
