"""Payloads of rumours, kept so that others can fetch them: so many bytes and no more, the oldest epochs' go first.

Room for a whole rumour is set aside when its first word comes, so what is promised always fits. A payload that has come
whole, and that the application is done with, may be dropped for another, so what waits to be applied is never more than
what is kept; the rumour itself is not forgotten by that, for which rumours there are is not decided here. No message is
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gossipdp.protocol.epidemic.signing import Part
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["MAX_OPEN", "Record", "Store"]

MAX_OPEN: Final = 4
"""rumours of one origin that are coming at one time; more of them wait"""


class Record:
    """One rumour that is here or on its way.

    have, full: sets of parts. upstream: whom it came from first, b"" for this peer. given: the application has
    it, and is done with it.
    """

    __slots__ = ("full", "given", "have", "hops", "name", "parts", "rumour", "table", "upstream", "wanted")

    def __init__(self, name: bytes, rumour: Rumour, table: Buffer, wanted: list[Part], upstream: bytes) -> None:
        self.name, self.rumour, self.table, self.wanted, self.upstream = name, rumour, table, wanted, upstream
        self.hops = rumour.hops
        self.parts: list[Buffer] = [b""] * len(wanted)
        self.have, self.full = 0, (1 << len(wanted)) - 1
        self.given = False

    @property
    def complete(self) -> bool:
        return self.have == self.full


class Store:
    """Args:

    most: bytes of payloads.
    dropped: called with the name of what is dropped to make room.
    """

    def __init__(self, most: int, dropped: Callable[[bytes], None]) -> None:
        self._most, self._dropped = most, dropped
        self._records: dict[bytes, Record] = {}
        self._open: dict[bytes, int] = {}
        """by origin, how many are not complete"""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: bytes) -> Record | None:
        return self._records.get(name)

    def records(self) -> list[Record]:
        """In the order of their coming."""
        return list(self._records.values())

    def admit(self, record: Record, *, own: bool = False) -> bool:
        """Set room aside for it; False if there is none now. One's own is kept in any case, for the state holds it."""
        origin, size = record.rumour.origin, record.rumour.size
        if not record.complete and self._open.get(origin, 0) >= MAX_OPEN:
            return False
        if not self._make_room(size) and not own:
            return False
        self._records[record.name] = record
        self.bytes += size
        if not record.complete:
            self._open[origin] = self._open.get(origin, 0) + 1
        return True

    def put(self, record: Record, part: int, payload: Buffer) -> None:
        """A part of an incomplete rumour, found good."""
        record.parts[part] = payload
        record.have |= 1 << part
        if record.complete:
            self._close(record)

    def drop(self, name: bytes) -> Record | None:
        record = self._records.pop(name, None)
        if record is not None:
            self.bytes -= record.rumour.size
            if not record.complete:
                self._close(record)
        return record

    def _close(self, record: Record) -> None:
        origin = record.rumour.origin
        self._open[origin] -= 1
        if not self._open[origin]:
            del self._open[origin]

    def _make_room(self, size: int) -> bool:
        if self.bytes + size <= self._most:
            return True
        idle = [record for record in self._records.values() if record.complete and record.given]
        if self.bytes - sum(record.rumour.size for record in idle) + size > self._most:
            return False
        for record in sorted(idle, key=lambda each: each.rumour.epoch):
            self.drop(record.name)
            self._dropped(record.name)
            if self.bytes + size <= self._most:
                break
        return True
