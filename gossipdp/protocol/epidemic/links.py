"""The neighbours of a peer.

A peer has few neighbours, chosen so that the graph of all links is connected. One is the next member in the order of
ids, which makes a ring of any set of members. The others have the highest hash together with this peer's id (Thaler and
Ravishankar 1998), which makes the ring an expander. The choice follows from the live members alone, so after a heal the
links are the same as before. A peer tells those it chose, and a link counts in both directions.

No message is made here.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from gossipdp.protocol.epidemic.link import Link

__all__ = ["Links", "chosen"]

MAX_LINKS: Final = 16
"""neighbours; a further peer that chooses this one is refused"""
MAX_VISITORS: Final = 16
"""members that are not neighbours and fetch something"""
MAX_REFUSALS: Final = 3
"""refusals after which this peer no longer chooses a member"""


def chosen(me: bytes, live: Iterable[bytes], count: int) -> set[bytes]:
    """The `count` neighbours that `me` chooses among the other live members."""
    others = sorted(peer for peer in live if peer != me)
    if len(others) <= count:
        return set(others)
    following = others[bisect_right(others, me) % len(others)]
    rest = (peer for peer in others if peer != following)
    return {following, *heapq.nlargest(count - 1, rest, key=lambda peer: _score(me, peer))}


def _score(me: bytes, peer: bytes) -> bytes:
    return hashlib.blake2b(me + peer, digest_size=8, person=b"gossipdp link").digest()


class Links:
    """All links of one peer.

    Args:
        me: this peer's id.
        count: neighbours that this peer chooses.
        window, again: see `Link`.
    """

    def __init__(self, me: bytes, count: int, window: int, again: float) -> None:
        self.me, self._count, self._window, self._again = me, count, window, again
        self.live: set[bytes] = set()
        """other members that are alive and reachable"""
        self._all: dict[bytes, Link] = {}
        self._unwilling: set[bytes] = set()
        self._freed: dict[bytes, None] = {}

    def get(self, peer: bytes) -> Link | None:
        return self._all.get(peer)

    def __iter__(self) -> Iterator[Link]:
        return iter([*self._all.values()])

    def neighbours(self) -> list[Link]:
        """The links to all neighbours."""
        return [link for link in self._all.values() if link.neighbour]

    def to_greet(self) -> list[Link]:
        """Neighbours that must be told that this peer chose them. Each is returned once."""
        untold = [link for link in self.neighbours() if not link.told]
        for link in untold:
            link.told = True
        return untold

    def follow(self, live: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Take the live and reachable members.

        Returns:
            The members that are lost, and the members that are no neighbours any more.
        """
        before, self.live = self.live, {peer for peer in live if peer != self.me}
        self._unwilling &= self.live
        lost = sorted(before - self.live)
        for peer in lost:
            self._all.pop(peer, None)
        return lost, self._choose()

    def _choose(self) -> list[bytes]:
        own = chosen(self.me, self.live - self._unwilling, self._count)
        left = [link.peer for link in self if link.own and link.peer not in own]
        for peer in left:
            self._all[peer].own = False
        for peer in sorted(own):
            link = self._open(peer)
            if not link.own:
                link.own, link.told = True, False
        return [peer for peer in left if not self._all[peer].theirs]

    def _open(self, peer: bytes) -> Link:
        link = self._all.get(peer)
        if link is None:
            link = self._all[peer] = Link(peer, self._window, self._again)
        return link

    def chosen_by(self, peer: bytes) -> bool:
        """`peer` chose this peer. False if there are too many neighbours."""
        link = self._all.get(peer)
        if link is None or not link.neighbour:
            if peer not in self.live or len(self.neighbours()) >= MAX_LINKS:
                return False
            link = self._open(peer)
        link.theirs, link.refusals = True, 0
        return True

    def refused_by(self, peer: bytes) -> None:
        """`peer` refuses to be a neighbour. If this peer chose it, tell it again, and give up after MAX_REFUSALS."""
        link = self._all.get(peer)
        if link is None:
            return
        link.theirs = False
        if link.own:
            link.refusals += 1
            link.told = False
            if link.refusals >= MAX_REFUSALS:
                self._unwilling.add(peer)
                self._choose()

    def serve(self, peer: bytes) -> Link | None:
        """The link to `peer`, which asks for something. None if too many others do."""
        link = self._all.get(peer)
        if link is None and peer in self.live:
            idle = [other.peer for other in self._all.values() if not other.neighbour and not other.pushes]
            for each in idle:
                del self._all[each]
            if sum(not other.neighbour for other in self._all.values()) < MAX_VISITORS:
                link = self._open(peer)
        return link

    def stop(self, name: bytes) -> None:
        """Push this increment to no member any more."""
        for link in self._all.values():
            if name in link.pushes:
                link.stop(name)
                self._freed[link.peer] = None

    def freed(self) -> list[Link]:
        """Links that got room since the last call."""
        links = [link for peer in self._freed if (link := self._all.get(peer)) is not None]
        self._freed.clear()
        return links
