"""What this peer itself saw of other members: when it heard them, their round-trip time, their speed.

Live members that it never heard are known by hearsay only. Their number is bounded, more narrowly once they are silent
to probes, because a liar can introduce members that do not exist.

A key costs nothing, so the number of members proves nothing either. Where words of several members decide something,
only proven ones have a voice: those that this peer has known for long, and those that the operator names. As long as no
member is proven, all have one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.introductions import most_hearsay, most_live
from gossipdp.protocol.wire.messages import FASTEST_RATE, SLOWEST_RATE

__all__ = ["Contacts", "Seen"]

_GHOSTS: Final = 4
"""members never heard that are silent to probes in a row, before fewer of their kind are accepted"""
_LEAST_HEARSAY: Final = 8
"""members known by hearsay that are contacted even then"""


@dataclass(slots=True)
class Seen:
    """What this peer itself saw of another member. Times in seconds."""

    first: float = -math.inf
    """time of its first message"""
    heard: float = -math.inf
    """time of its last message"""
    told: float = -math.inf
    """when this peer last told it directly what is believed of it"""
    viewed: float = -math.inf
    """when this peer last sent it the whole view in reply"""
    rtt: float | None = None
    """smoothed round-trip time"""
    linked: bool = False
    """it has sent a message, and the transport has not lost it since"""
    speed: float = 0.0
    """steps a second, by its last report of training"""
    rests: float = math.inf
    """time of its first report since then that it does not train"""
    rested: float = 0.0
    """seconds from then to its last such report"""


class Contacts:
    """What this peer saw of each member, and which live members it never heard.

    Args:
        proven_after: seconds for which a member must have been known.
        admission: tells which members the operator names.
    """

    def __init__(self, proven_after: float, admission: Admission) -> None:
        self._proven_after, self._admission = proven_after, admission
        self._earlier: dict[bytes, float] = {}
        """member -> seconds for which earlier lives of this peer knew it"""
        self.some_proven = False
        """a member was proven at some time"""
        self._proven: set[bytes] = set()
        """members known for long"""
        self.seen: dict[bytes, Seen] = {}
        self.hearsay: dict[bytes, None] = {}
        """live members that this peer never heard"""
        self.heard_from = 0
        """members that this peer has heard itself"""
        self._silent = 0
        """members never heard that were probed in vain, one after another"""

    def sight(self, peer: bytes) -> Seen:
        """What was seen of this member; created if there is nothing yet."""
        seen = self.seen.get(peer)
        if seen is None:
            seen = self.seen[peer] = Seen()
        return seen

    def hear(self, peer: bytes, now: float) -> None:
        """A message of this member came."""
        seen = self.sight(peer)
        self.heard_from += seen.heard == -math.inf
        self.hearsay.pop(peer, None)
        seen.first = now if seen.first == -math.inf else seen.first
        seen.heard, seen.linked = now, True
        self._prove(peer)

    def update(self, peer: bytes, *, live: bool) -> None:
        """The member is now known as live, or as dead."""
        if live and not self.heard(peer):
            self.hearsay[peer] = None
        else:
            self.hearsay.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """The member is not known any more."""
        self.heard_from -= self.heard(peer)
        self.seen.pop(peer, None)
        self._earlier.pop(peer, None)
        self._proven.discard(peer)

    def heard(self, peer: bytes) -> bool:
        """Whether the member has ever sent this peer a message."""
        seen = self.seen.get(peer)
        return seen is not None and seen.heard > -math.inf

    def heard_since(self, peer: bytes, since: float) -> bool:
        """Whether a message of the member came after `since`."""
        seen = self.seen.get(peer)
        return seen is not None and seen.heard > since

    def linked(self, peer: bytes) -> bool:
        """Whether it has sent a message, and the transport has not lost it since."""
        seen = self.seen.get(peer)
        return seen is not None and seen.linked

    def link_down(self, peer: bytes) -> None:
        """The transport lost the member."""
        if peer in self.seen:
            self.seen[peer].linked = False

    def answered(self, peer: bytes, seconds: float) -> None:
        """The member answered a ping after `seconds`: update its round-trip time."""
        seen = self.seen.get(peer)
        if seen is not None:
            seen.rtt = seconds if seen.rtt is None else seen.rtt + (seconds - seen.rtt) / 8

    def may_tell(self, peer: bytes, pause: float, now: float) -> bool:
        """Whether the member may be told what is believed of it, at most once in `pause` seconds. Counts as telling."""
        seen = self.sight(peer)
        if now < seen.told + pause:
            return False
        seen.told = now
        return True

    def may_view(self, peer: bytes, pause: float, now: float) -> bool:
        """Whether the member may get a view, at most once in `pause` seconds; a stranger may not. Counts as sending."""
        seen = self.seen.get(peer)
        if seen is None or now < seen.viewed + pause:
            return False
        seen.viewed = now
        return True

    # -- voices -----------------------------------------------------------------------------------------------

    def known_before(self, peer: bytes, seconds: float) -> None:
        """Earlier lives of this peer knew the member for so long."""
        self._earlier[peer] = seconds
        self._prove(peer)

    def known_for(self, peer: bytes) -> float:
        """Seconds between the first and the last message of the member, earlier lives of this peer included."""
        seen = self.seen.get(peer)
        return self._earlier.get(peer, 0.0) + (0.0 if seen is None or not self.heard(peer) else seen.heard - seen.first)

    def proven(self, peer: bytes) -> bool:
        """Whether this peer has known the member for long, or the operator names it."""
        return peer in self._proven or self._admission.vouches(peer)

    def known(self) -> dict[bytes, float]:
        """Seconds for which this peer has known each member that it ever heard; infinite for a proven one."""
        return {peer: math.inf if self.proven(peer) else self.known_for(peer) for peer in (*self._earlier, *self.seen)}

    def _prove(self, peer: bytes) -> None:
        if self.known_for(peer) >= self._proven_after:
            self._proven.add(peer)
        self.some_proven = self.some_proven or self.proven(peer)

    def voices(self, peers: Iterable[bytes]) -> list[bytes]:
        """Those of `peers` whose word counts: all of them as long as no member at all is proven."""
        return [peer for peer in peers if self.proven(peer)] if self.some_proven else list(peers)

    # -- training -----------------------------------------------------------------------------------------------

    def reported_speed(self, peer: bytes, speed: float, now: float) -> None:
        """The member reports that it trains `speed` steps a second; 0 for none."""
        seen = self.seen.get(peer)
        if seen is not None and SLOWEST_RATE <= speed <= FASTEST_RATE:
            seen.speed, seen.rests, seen.rested = speed, math.inf, 0.0
        elif seen is not None:
            seen.rests = min(seen.rests, now)
            seen.rested = now - seen.rests

    def trains(self, peer: bytes) -> bool:
        """Whether the member's last report said that it trains."""
        seen = self.seen.get(peer)
        return seen is not None and seen.speed > 0.0 and seen.rests == math.inf

    # -- hearsay ------------------------------------------------------------------------------------------------

    @property
    def acquainted(self) -> int:
        """Members on whose number the limits of hearsay depend: the proven ones, or all heard while none is proven."""
        return len(self._proven) if self.some_proven else self.heard_from

    @property
    def crowded(self) -> bool:
        """Whether this peer accepts no more live members by hearsay."""
        most = most_live if self._doubtful else most_hearsay
        return len(self.hearsay) >= most(self.acquainted)

    @property
    def hearsay_limit(self) -> int:
        """How many members known by hearsay are contacted. If those probed last do not exist, others may not either."""
        known = len(self.hearsay)
        return min(known, max(_LEAST_HEARSAY, self.acquainted)) if self._doubtful else known

    def probed_unheard(self, *, answered: bool) -> bool:
        """A member that this peer never heard was probed. Returns whether the limit on hearsay has become narrow."""
        before, self._silent = self._doubtful, 0 if answered else self._silent + 1
        return self._doubtful and not before

    @property
    def _doubtful(self) -> bool:
        return self._silent >= _GHOSTS
