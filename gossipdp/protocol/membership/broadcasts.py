"""The transmit-limited queue of member updates that ride on other messages (SWIM section 4.1).

Updates sent least often go first; among equals the newest. A later record of a member replaces the earlier one. Only
messages sent to spread news count, not the pings that carry it too: a burst of pings goes to few members, and would use
the news up before all have it. `merging` decides what is news; nothing here compares incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.protocol.wire.messages import MAX_RECORDS, Member

__all__ = ["MOST_STATED", "ROOM", "Broadcasts", "pages", "record_size", "stated_size"]

ROOM: Final = 3200
"""bytes of records in one message: the header's 4096 less 6 progress reports and the rest"""
MOST_STATED: Final = 720
"""bytes of what a member states of itself: a name in any script, and four addresses of 80 bytes. So the three records
that a message may have to carry fit with all their accusers."""


def stated_size(record: Member) -> int:
    """Upper bound, in bytes, of the space that `record` takes in a header without its accusers."""
    texts = (record.name, record.address, record.software, *record.others)
    return 128 + 2 * len(record.others) + len("".join(texts).encode())


def record_size(record: Member) -> int:
    """Upper bound, in bytes, of the space that `record` takes in a header."""
    return stated_size(record) + 34 * len(record.accusers)


def pages(me: Member, records: Iterable[Member]) -> list[tuple[Member, ...]]:
    """Cut `records` into pages that fit a message, with `me` first on each. There is at least one page."""
    done: list[tuple[Member, ...]] = []
    page, room = [me], ROOM - record_size(me)
    for record in records:
        if len(page) == MAX_RECORDS or record_size(record) > room:
            done.append(tuple(page))
            page, room = [me], ROOM - record_size(me)
        page.append(record)
        room -= record_size(record)
    return [*done, tuple(page)]


class Broadcasts:
    """The queue. It holds at most one update of each member."""

    def __init__(self) -> None:
        self._tiers: list[dict[bytes, Member]] = [{}]
        """by number of transmissions; in each the newest last"""
        self._tier: dict[bytes, int] = {}
        self._patient: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._tier)

    def put(self, record: Member, told: int = 0, *, patient: bool = False) -> None:
        """Queue `record` as if it had been sent `told` times; more means less urgent.

        Args:
            patient: the update can wait.
        """
        self.discard(record.id)
        self._insert(record, told)
        if patient:
            self._patient.add(record.id)

    def patient(self, member: bytes) -> bool:
        """Whether the last update of `member` that was queued can wait."""
        return member in self._patient

    def discard(self, member: bytes) -> None:
        """Drop the update of `member`, if there is one."""
        self._patient.discard(member)
        tier = self._tier.pop(member, None)
        if tier is not None:
            del self._tiers[tier][member]

    def count(self, member: bytes, times: int, limit: int) -> None:
        """Count `times` more transmissions of the update of `member`; at `limit` it is dropped."""
        told = self._tier.get(member)
        if told is None:
            return
        record = self._tiers[told].pop(member)
        if told + times < limit:
            self._insert(record, told + times)
        else:
            del self._tier[member]

    def _insert(self, record: Member, told: int) -> None:
        while len(self._tiers) <= told:
            self._tiers.append({})
        self._tiers[told][record.id], self._tier[record.id] = record, told

    def peek(self, count: int, room: int) -> list[Member]:
        """Up to `count` updates of at most `room` bytes in all, for a message that goes out anyway."""
        chosen: list[Member] = []
        for tier in self._tiers:
            for record in reversed(tier.values()):
                room -= record_size(record)
                if len(chosen) == count or room < 0:
                    return chosen
                chosen.append(record)
        return chosen

    def take(self, count: int, room: int, limit: int) -> list[Member]:
        """As `peek`, for a message sent to spread them: an update is dropped once taken `limit` times."""
        chosen = self.peek(count, room)
        for record in reversed(chosen):
            self.count(record.id, 1, limit)
        return chosen
