"""With whom rumours are exchanged, and what each neighbour is being sent.

Neighbours are few, and chosen so that the graph of all links stays in one piece: the next member in the order of ids,
which makes a ring of any members, and some whose hash together with this peer's is highest (Thaler and Ravishankar
1998), which makes the ring an expander. Both follow from who is alive, so after a heal the links are those of before.
Whoever is chosen is told, and links count in both directions.

A payload is never queued: a link knows the names of what is to be pushed over it, and takes the next part from the
store when an answer has made room (`credit`). So a slow neighbour delays nobody else, and costs no memory. Of each
origin's rumours a link is eager, lazy or untried (Leitao et al. 2007, Plumtree, section 3): over an untried one only
the header goes ahead, and the payload if it is wanted. No message is made here.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from gossipdp.protocol.epidemic.send_window import Credit
from gossipdp.protocol.epidemic.store import Record

__all__ = ["Item", "Link", "Links", "chosen"]

Item: TypeAlias = tuple[bytes, int]
"""a rumour's name and a part of it, or HEADER"""
HEADER: Final = -1
HEADERS: Final = 64
"""headers under way over one link"""
MAX_ORIGINS: Final = 4096
"""origins of whom a link remembers whether it is eager"""
MAX_SERVED: Final = 1024
MAX_GRAFTS: Final = 8
"""times that one rumour is grafted to one link"""
MAX_LINKS: Final = 16
"""neighbours; of others that want to be one more is refused"""
MAX_VISITORS: Final = 16
"""members that are no neighbours and are sent something they asked for"""
MAX_REFUSALS: Final = 3


def chosen(me: bytes, live: Iterable[bytes], count: int) -> set[bytes]:
    """The neighbours that `me` chooses of the other live members."""
    others = sorted(peer for peer in live if peer != me)
    if len(others) <= count:
        return set(others)
    following = others[bisect_right(others, me) % len(others)]
    rest = (peer for peer in others if peer != following)
    return {following, *heapq.nlargest(count - 1, rest, key=lambda peer: _score(me, peer))}


def _score(me: bytes, peer: bytes) -> bytes:
    return hashlib.blake2b(me + peer, digest_size=8, person=b"gossipdp link").digest()


@dataclass(slots=True)
class Push:
    """One rumour on its way over one link. have: parts that the receiver has; sent: those under way to it, or answered;
    tried: those ever sent."""

    record: Record
    have: int = 0
    sent: int = 0
    tried: int = 0
    header: bool = False
    """under way, or answered"""
    wanted: bool = False
    """the payload is"""


class Link:
    """own, theirs: this peer has chosen that one, and the reverse. eager: by origin, whether it is (True) or is lazy
    (False)."""

    def __init__(self, peer: bytes, window: int, again: float) -> None:
        self.peer = peer
        self.own = self.theirs = False
        self.told = True
        """it need not be told that it was chosen"""
        self.refusals = 0
        self.eager: OrderedDict[bytes, bool] = OrderedDict()
        self.pushes: dict[bytes, Push] = {}
        self._headers: Credit[Item] = Credit(HEADERS, again, first=HEADERS)
        self._parts: Credit[Item] = Credit(window, again)
        self._served: OrderedDict[bytes, int] = OrderedDict()
        self.part_at = float("-inf")
        """when a part last came from it"""
        self.gap = 0.0
        """seconds between two, on average"""

    @property
    def near(self) -> bool:
        """They are neighbours."""
        return self.own or self.theirs

    def mark(self, origin: bytes, eager: bool) -> None:
        self.eager[origin] = eager
        self.eager.move_to_end(origin)
        if len(self.eager) > MAX_ORIGINS:
            self.eager.popitem(last=False)

    def push(self, record: Record) -> None:
        """The receiver is to have `record`; at once if the link is eager, and if it is untried once it says so."""
        if record.name not in self.pushes:
            self.pushes[record.name] = Push(record, wanted=self.eager.get(record.rumour.origin) is True)

    def graft(self, record: Record, have: int) -> bool:
        """It has asked for what it lacks; False if it has too often."""
        count = self._served.pop(record.name, 0) + 1
        self._served[record.name] = count
        if len(self._served) > MAX_SERVED:
            self._served.popitem(last=False)
        if count > MAX_GRAFTS:
            return False
        self.stop(record.name)
        self.mark(record.rumour.origin, True)
        if have & record.full != record.full:
            self.pushes[record.name] = Push(record, have, header=have != 0, wanted=True)
        return True

    def answered(self, name: bytes, have: int, now: float) -> None:
        """It wants this rumour, and has these parts."""
        push = self.pushes.get(name)
        if push is None:
            return
        record = push.record
        push.have |= have & record.full
        push.header = push.wanted = True
        self.mark(record.rumour.origin, True)
        self._headers.answered([(name, HEADER)], now)
        self._parts.answered([(name, part) for part in _parts(push.have & push.tried)], now)
        if push.have == record.full:
            self.stop(name)

    def stop(self, name: bytes) -> None:
        push = self.pushes.pop(name, None)
        if push is not None:
            self._headers.forget([(name, HEADER)])
            self._parts.forget([(name, part) for part in _parts(push.tried)])

    def next(self, now: float) -> tuple[Push, int] | None:
        """What to send next, if there is room: a header first, then parts of the rumour that has waited longest."""
        room = self._parts.room
        if not room and not self._headers.room:
            return None
        for name, push in self.pushes.items():
            if not push.header and self._headers.room:
                push.header = True
                self._headers.sent((name, HEADER), now)
                return push, HEADER
            ready = push.record.have & ~push.have & ~push.sent
            if room and ready and push.wanted and push.header:
                part = (ready & -ready).bit_length() - 1
                push.sent |= 1 << part
                push.tried |= 1 << part
                self._parts.sent((name, part), now)
                return push, part
        return None

    def timer(self) -> float:
        return min(self._headers.timer(), self._parts.timer())

    def handle_timer(self, now: float) -> bool:
        """Whether something was lost, and can be sent again."""
        headers, parts = self._headers.lost(now), self._parts.lost(now)
        for name, _ in headers:
            self.pushes[name].header = False
        for name, part in parts:
            self.pushes[name].sent &= ~(1 << part)
        return bool(headers or parts)

    def came(self, waited_since: float, now: float) -> None:
        """A part has come from it that was waited for since then, as far as no other came meanwhile."""
        gap = now - max(self.part_at, waited_since)
        self.gap = 0.5 * (self.gap + gap) if self.gap else gap
        self.part_at = now

    def cut(self) -> None:
        """The transport has lost it: nothing that was under way will be answered."""
        for name in [*self.pushes]:
            self.stop(name)
        self.told = not self.own


def _parts(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Links:
    """Args:

    count: neighbours that this peer chooses.
    """

    def __init__(self, me: bytes, count: int, window: int, again: float) -> None:
        self.me, self._count, self._window, self._again = me, count, window, again
        self.live: set[bytes] = set()
        self._all: dict[bytes, Link] = {}
        self._unwilling: set[bytes] = set()
        self._freed: dict[bytes, None] = {}

    def get(self, peer: bytes) -> Link | None:
        return self._all.get(peer)

    def __iter__(self) -> Iterator[Link]:
        return iter([*self._all.values()])

    def near(self) -> list[Link]:
        return [link for link in self._all.values() if link.near]

    def follow(self, live: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Who is alive and can be reached now. Returns who is lost, and who is no neighbour any more."""
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

    def befriend(self, peer: bytes) -> bool:
        """`peer` has chosen this one; False if there are too many."""
        link = self._all.get(peer)
        if link is None or not link.near:
            if peer not in self.live or len(self.near()) >= MAX_LINKS:
                return False
            link = self._open(peer)
        link.theirs, link.refusals = True, 0
        return True

    def part(self, peer: bytes) -> None:
        """`peer` does not count this one among its neighbours. If it was chosen it is told again, and is left in peace
        if it has said so thrice."""
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

    def visit(self, peer: bytes) -> Link | None:
        """The link to `peer`, which asks for something; None if too many others do."""
        link = self._all.get(peer)
        if link is None and peer in self.live:
            idle = [other.peer for other in self._all.values() if not other.near and not other.pushes]
            for each in idle:
                del self._all[each]
            if sum(not other.near for other in self._all.values()) < MAX_VISITORS:
                link = self._open(peer)
        return link

    def stop(self, name: bytes) -> None:
        """Nobody is to get this rumour from here any more."""
        for link in self._all.values():
            if name in link.pushes:
                link.stop(name)
                self._freed[link.peer] = None

    def freed(self) -> list[Link]:
        """Links that have room again for something else, since this was last asked."""
        links = [link for peer in self._freed if (link := self._all.get(peer)) is not None]
        self._freed.clear()
        return links
