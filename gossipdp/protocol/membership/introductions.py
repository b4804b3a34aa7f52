"""Limits on the unknown members that each member may introduce to this peer.

A key costs nothing, so one member could introduce members without end that do not exist. They would take up probes,
offers, logs and memory. So the introductions of one member are bounded per minute. The bound on live members is
narrower, in proportion to the members that this peer has heard itself. All live members that it never heard have a
bound, too. A refused member is not lost: it counts once this peer hears it, and comparisons of views offer it again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Introductions", "most_hearsay", "most_live"]

A_MINUTE: Final = 600
"""most members that one member introduces in a minute"""
_SOURCES: Final = 1024
"""members whose introductions are counted at one time"""


def most_live(heard: int) -> int:
    """Most live members that one member introduces in a minute, to a peer that has heard `heard` members itself."""
    return 64 + 16 * heard


def most_hearsay(heard: int) -> int:
    """Most live members that a peer knows only from other members, if it has heard `heard` members itself.

    Once such members were silent to its probes, `most_live` is the bound.
    """
    return 1024 + 16 * heard


class Introductions:
    """Counts introductions by member, in minutes that begin with a member's first one."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[float, int, int]] = {}
        """member -> start of its minute, introductions, and those of live members among them"""

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
