"""The transmit-limited queue of member updates that ride on other messages (SWIM section 4.1).

Updates told to the fewest peers go first, so that news travels before repetition; among equals the newest. A later
record of a member replaces the earlier. Only messages sent to spread news are counted, not the pings it rides on: a
burst of pings goes to few members, and would use the news up before all have it. Which updates are news is decided by
`membership`; nothing here compares incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.protocol.wire.messages import MAX_RECORDS, Member

__all__ = ["ROOM", "Broadcasts", "pages", "record_size"]

ROOM: Final = 3200
"""bytes of records in one message: the header's 4096 less 6 progress reports and the rest"""


def record_size(record: Member) -> int:
    """At most so many bytes does `record` take in a message's header."""
    return 128 + 34 * len(record.accusers) + len((record.name + record.address + record.software).encode())


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
        self._tier: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._tier)

    def put(self, record: Member, told: int = 0) -> None:
        """`record` is news; it has been told to nobody, or counts as `told` so many times, as it matters less."""
        self.discard(record.id)
        self._insert(record, told)

    def discard(self, member: bytes) -> None:
        tier = self._tier.pop(member, None)
        if tier is not None:
            del self._tiers[tier][member]

    def count(self, member: bytes, times: int, limit: int) -> None:
        """The update of `member`, if there is one, counts as told so many times more; at `limit` it is dropped."""
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
        """Up to `count` updates of together at most `room` bytes, to ride on a message that goes out anyway."""
        chosen: list[Member] = []
        for tier in self._tiers:
            for record in reversed(tier.values()):
                room -= record_size(record)
                if len(chosen) == count or room < 0:
                    return chosen
                chosen.append(record)
        return chosen

    def take(self, count: int, room: int, limit: int) -> list[Member]:
        """The same for a message sent to spread them: each is dropped once taken `limit` times."""
        chosen = self.peek(count, room)
        for record in reversed(chosen):
            self.count(record.id, 1, limit)
        return chosen
