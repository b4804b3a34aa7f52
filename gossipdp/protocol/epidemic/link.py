"""The link to one member: what it is being sent, and what is under way.

A payload is never queued. A link keeps the names of the increments to push, and takes the next part from the store when
its send window has room. A slow neighbour therefore delays no other and costs no memory. For the increments of each
origin a link is eager, lazy or untried (Plumtree, Leitao et al. 2007, section 3). Over an untried link only the header
goes ahead, and the payload follows on request. No message is made here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from gossipdp.protocol.epidemic.send_window import SendWindow
from gossipdp.protocol.epidemic.store import Record

__all__ = ["HEADER", "Item", "Link", "Push"]

Item: TypeAlias = tuple[bytes, int]
"""an increment's name, and the number of a part or HEADER"""
HEADER: Final = -1
HEADERS: Final = 64
"""headers under way over one link"""
MAX_ORIGINS: Final = 4096
"""origins for which a link remembers whether it is eager"""
MAX_SERVED: Final = 1024
"""increments for which a link counts its grafts"""
MAX_GRAFTS: Final = 8
"""grafts of one increment to one link"""


@dataclass(slots=True)
class Push:
    """One increment on its way over one link. Sets of parts are bit masks."""

    record: Record
    have: int = 0
    """parts that the receiver has"""
    sent: int = 0
    """parts under way or answered"""
    tried: int = 0
    """parts ever sent"""
    header: bool = False
    """the header is under way or answered"""
    wanted: bool = False
    """the receiver wants the payload"""


class Link:
    """The link to one member.

    Args:
        peer: its id.
        window: most parts under way.
        again: seconds without an answer before a part is sent again.
    """

    def __init__(self, peer: bytes, window: int, again: float) -> None:
        self.peer = peer
        self.own = False
        """this peer chose the member"""
        self.theirs = False
        """the member chose this peer"""
        self.told = True
        """the member knows whether this peer chose it"""
        self.refusals = 0
        self.eager: OrderedDict[bytes, bool] = OrderedDict()
        """by origin, True for eager and False for lazy; a missing origin is untried"""
        self.pushes: dict[bytes, Push] = {}
        self._headers: SendWindow[Item] = SendWindow(HEADERS, again, first=HEADERS)
        self._parts: SendWindow[Item] = SendWindow(window, again)
        self._served: OrderedDict[bytes, int] = OrderedDict()
        self.part_at = float("-inf")
        """when a part last came from the member"""
        self.gap = 0.0
        """average seconds between two parts"""

    @property
    def neighbour(self) -> bool:
        """Whether one of the two chose the other."""
        return self.own or self.theirs

    def set_eager(self, origin: bytes, eager: bool) -> None:
        """Make the link eager or lazy for the increments of `origin`."""
        self.eager[origin] = eager
        self.eager.move_to_end(origin)
        if len(self.eager) > MAX_ORIGINS:
            self.eager.popitem(last=False)

    def push(self, record: Record) -> None:
        """Push `record`: header and payload if the link is eager, else the header, and the payload on request."""
        if record.name not in self.pushes:
            self.pushes[record.name] = Push(record, wanted=self.eager.get(record.rumour.origin) is True)

    def graft(self, record: Record, have: int) -> bool:
        """The member asked for the parts that it lacks. False if it asked too often."""
        count = self._served.pop(record.name, 0) + 1
        self._served[record.name] = count
        if len(self._served) > MAX_SERVED:
            self._served.popitem(last=False)
        if count > MAX_GRAFTS:
            return False
        self.stop(record.name)
        self.set_eager(record.rumour.origin, True)
        if have & record.full != record.full:
            self.pushes[record.name] = Push(record, have, header=have != 0, wanted=True)
        return True

    def answered(self, name: bytes, have: int, now: float) -> None:
        """The member wants this increment, and has the parts `have`."""
        push = self.pushes.get(name)
        if push is None:
            return
        record = push.record
        push.have |= have & record.full
        push.header = push.wanted = True
        self.set_eager(record.rumour.origin, True)
        self._headers.answered([(name, HEADER)], now)
        self._parts.answered([(name, part) for part in _parts(push.have & push.tried)], now)
        if push.have == record.full:
            self.stop(name)

    def stop(self, name: bytes) -> None:
        """Push this increment no more."""
        push = self.pushes.pop(name, None)
        if push is not None:
            self._headers.forget([(name, HEADER)])
            self._parts.forget([(name, part) for part in _parts(push.tried)])

    def next(self, now: float) -> tuple[Push, int] | None:
        """The next item to send, or None without room: headers first, then parts of the oldest increment."""
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
        """When something under way counts as lost."""
        return min(self._headers.timer(), self._parts.timer())

    def handle_timer(self, now: float) -> bool:
        """Whether something was lost and can be sent again."""
        headers, parts = self._headers.lost(now), self._parts.lost(now)
        for name, _ in headers:
            self.pushes[name].header = False
        for name, part in parts:
            self.pushes[name].sent &= ~(1 << part)
        return bool(headers or parts)

    def received(self, waited_since: float, now: float) -> None:
        """A part came from the member. This peer waited for it since `waited_since`, or since the part before."""
        gap = now - max(self.part_at, waited_since)
        self.gap = 0.5 * (self.gap + gap) if self.gap else gap
        self.part_at = now

    def disconnected(self) -> None:
        """The transport lost the link: nothing under way will be answered."""
        for name in [*self.pushes]:
            self.stop(name)
        self.told = not self.own


def _parts(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
