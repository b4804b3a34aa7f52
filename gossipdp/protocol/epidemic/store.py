"""A bounded store of payloads that other peers can fetch. The oldest epochs are dropped first.

The store reserves room for a whole increment when its header comes, so an admitted increment always fits. It may drop a
payload that is complete and that the application no longer needs. What waits to be applied is therefore bounded too. A
dropped payload is still known to `epochs`. No message is handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.protocol.epidemic.signing import Part
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["MAX_OPEN", "Record", "Store"]

MAX_OPEN: Final = 4
"""largest number of incomplete increments of one origin"""


class Record:
    """One increment, complete or on its way.

    Args:
        name: its name (see `signing`).
        rumour: its header.
        table: size and hash of each part, as bytes.
        wanted: the parsed table.
        upstream: the peer that pushes it, b"" for an own increment.
        parts: the payload of an own increment.
    """

    __slots__ = ("full", "have", "hops", "name", "needed", "parts", "rumour", "table", "upstream", "wanted")

    def __init__(
        self,
        name: bytes,
        rumour: Rumour,
        table: Buffer,
        wanted: list[Part],
        upstream: bytes,
        parts: Sequence[Buffer] = (),
    ) -> None:
        self.name, self.rumour, self.table, self.wanted, self.upstream = name, rumour, table, wanted, upstream
        self.hops = 0 if parts else rumour.hops
        self.full = (1 << len(wanted)) - 1
        """set of all parts, one bit each"""
        self.have = self.full if parts else 0
        """set of the parts that are here"""
        self.parts: list[Buffer] = list(parts) or [b""] * len(wanted)
        self.needed = True
        """the application still needs the payload, so the store keeps it"""

    @property
    def complete(self) -> bool:
        """Whether all parts are here."""
        return self.have == self.full

    def need(self, needed: bool) -> None:
        """Whether the application needs the payload from now on."""
        self.needed = needed

    def reroute(self, upstream: bytes, hops: int) -> None:
        """Another peer pushes it, over `hops` links from its origin."""
        self.upstream, self.hops = upstream, hops


class Store:
    """The payloads of one peer.

    Args:
        most: largest sum of payload bytes.
        dropped: called with the name of each increment that is dropped to make room.
    """

    def __init__(self, most: int, dropped: Callable[[bytes], None]) -> None:
        self._most, self._dropped = most, dropped
        self._records: dict[bytes, Record] = {}
        self._open: dict[bytes, int] = {}
        """by origin, the number of incomplete increments"""
        self.bytes = 0
        """reserved bytes"""

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: bytes) -> Record | None:
        return self._records.get(name)

    def records(self) -> list[Record]:
        """All records, in the order of their arrival."""
        return list(self._records.values())

    def admit(self, record: Record, *, own: bool = False) -> bool:
        """Reserve room for an increment. False if there is none now. An own one is always admitted."""
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
        """Add a verified part to an incomplete increment."""
        record.parts[part] = payload
        record.have |= 1 << part
        if record.complete:
            self._close(record)

    def drop(self, name: bytes) -> Record | None:
        """Remove an increment and return it, or None if it is not here."""
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
        idle = [record for record in self._records.values() if record.complete and not record.needed]
        if self.bytes - sum(record.rumour.size for record in idle) + size > self._most:
            return False
        for record in sorted(idle, key=lambda each: each.rumour.epoch):
            self.drop(record.name)
            self._dropped(record.name)
            if self.bytes + size <= self._most:
                break
        return True
