"""The transmit-limited queue of member updates that ride on other messages (SWIM section 4.1).

Updates told to the fewest peers go first, so that news travels before repetition; among equals the newest. A later
record of a member replaces the earlier. Only messages sent to spread news are counted, not the pings it rides on: a
burst of pings goes to few members, and would use the news up before all have it. Which updates are news is decided by
`membership`; nothing here compares incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.protocol.messages import MAX_RECORDS, Member

__all__ = ["ROOM", "Broadcasts", "pages", "record_size"]

ROOM: Final = 3456
"""bytes of records in one message: the header's 4096 less 8 progress reports and the rest"""


def record_size(record: Member) -> int:
    """At most so many bytes does `record` take in a message's header."""
    return 64 + sum(len(text.encode()) for text in (record.name, record.address, record.software))


def pages(me: Member, records: Iterable[Member]) -> list[tuple[Member, ...]]:
    """`records` in pages that fit a message, `me` first on each; one page at least."""
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
    """At most one update a member, so the queue is no longer than the member table."""

    def __init__(self) -> None:
        self._tiers: list[dict[bytes, Member]] = [{}]
        """by times told; within one, the newest last"""

    def __len__(self) -> int:
        return sum(map(len, self._tiers))

    def put(self, record: Member) -> None:
        """`record` is news, told to nobody so far."""
        self.discard(record.id)
        self._tiers[0][record.id] = record

    def discard(self, member: bytes) -> None:
        for tier in self._tiers:
            tier.pop(member, None)

    def peek(self, count: int, room: int) -> list[Member]:
        """Up to `count` updates of together at most `room` bytes, to ride on a message that goes out anyway."""
        return [record for _, record in self._first(count, room)]

    def take(self, count: int, room: int, limit: int) -> list[Member]:
        """The same for a message sent to spread them: each is dropped once taken `limit` times."""
        chosen = self._first(count, room)
        for told, record in reversed(chosen):
            del self._tiers[told][record.id]
            if told + 1 < limit:
                if told + 1 == len(self._tiers):
                    self._tiers.append({})
                self._tiers[told + 1][record.id] = record
        return [record for _, record in chosen]

    def _first(self, count: int, room: int) -> list[tuple[int, Member]]:
        chosen: list[tuple[int, Member]] = []
        for told, tier in enumerate(self._tiers):
            for record in reversed(tier.values()):
                room -= record_size(record)
                if len(chosen) == count or room < 0:
                    return chosen
                chosen.append((told, record))
        return chosen
