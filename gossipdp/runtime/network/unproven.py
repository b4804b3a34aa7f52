"""Inbound connections without a proven member: how many may be open, for how long, and which are closed first.

Anyone can open TCP connections, and each takes a descriptor. libzmq keeps what comes on one until a message is whole,
and has no bound for that. So a connection is closed that sends more than a hello or an invite takes. No socket may
stand here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gossipdp.runtime.network.host_port import address_range

__all__ = ["MOST_BYTES", "Unproven", "UnprovenConnection"]

MOST_BYTES: Final = 1800
"""Bytes that a connection may send before a member is proven on it: 1.25 times the longest invite, with the handshake
before it. A hello and its proof take 813 bytes, or 1,010 with the longest names."""
LOOK: Final = 0.1
"""seconds between two looks at how much came"""


@dataclass(frozen=True, slots=True)
class UnprovenConnection:
    """One inbound connection."""

    descriptor: int
    cookie: bytes
    """the kernel's name for the socket, never used twice"""
    origin: str
    """IP address, "" if unknown"""
    until: float
    """when it is closed unless a member is proven on it"""
    most: float = MOST_BYTES
    """bytes that it may send until then"""


class Unproven:
    """Inbound connections by their descriptors.

    Args:
        most: connections that may be open at once.
        patience: seconds that each has to prove a member.
        received: returns the bytes that a connection has ever received.
    """

    def __init__(self, most: int, patience: float, received: Callable[[UnprovenConnection], int]) -> None:
        self.most = most
        self._patience, self._received = patience, received
        self._look_at = -math.inf
        self._waiting: dict[int, UnprovenConnection] = {}
        self._proven: dict[int, tuple[UnprovenConnection, bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def accepted(self, descriptor: int, cookie: bytes, origin: str, now: float) -> None:
        self.closed(descriptor)
        self._waiting[descriptor] = UnprovenConnection(descriptor, cookie, origin, now + self._patience)

    def closed(self, descriptor: int) -> str:
        """The connection with this descriptor is gone. Returns the address it came from, or ""."""
        if (proven := self._proven.pop(descriptor, None)) is not None:
            return proven[0].origin
        waiting = self._waiting.pop(descriptor, None)
        return "" if waiting is None else waiting.origin

    def proven(self, descriptor: int, route: bytes) -> None:
        """A member is proven on the connection that libzmq calls `route`."""
        if (waiting := self._waiting.pop(descriptor, None)) is not None:
            self._proven[descriptor] = waiting, route

    def readmitted(self, connection: UnprovenConnection, route: bytes) -> None:
        """A connection that was removed belongs to a member after all."""
        self._proven[connection.descriptor] = connection, route

    def dismissed(self, descriptor: int, route: bytes, now: float, grace: float) -> None:
        """The link of the connection is over. It is closed after `grace` seconds if the other side leaves it open."""
        proven, known = self._proven.get(descriptor, (None, b""))
        if proven is not None and known == route:
            del self._proven[descriptor]
            self._waiting[descriptor] = UnprovenConnection(
                descriptor, proven.cookie, proven.origin, now + grace, math.inf
            )

    def links(self) -> dict[bytes, int]:
        """Route and descriptor of each connection on which a member is proven."""
        return {route: connection.descriptor for connection, route in self._proven.values()}

    def next_timer(self) -> float:
        return min((connection.until for connection in self._waiting.values()), default=math.inf)

    def next_look(self) -> float:
        """When to call `large` next."""
        return self._look_at if self._waiting else math.inf

    def large(self, now: float) -> list[UnprovenConnection]:
        """Remove and return the connections that sent more than they may, if it is time to look."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK
        return self._remove([each for each in self._waiting.values() if self._received(each) > each.most])

    def late(self, now: float) -> list[UnprovenConnection]:
        """Remove and return the connections whose time is over."""
        return self._remove([connection for connection in self._waiting.values() if now >= connection.until])

    def crowd(self) -> list[UnprovenConnection]:
        """Remove and return the connections to close because there are more than `most`.

        The range of addresses with the most connections loses first, its oldest connections before others: a newcomer
        proves itself within some round trips. With too many ranges for shares, the oldest of all lose. What was sent
        does not count, because a stranger may send anything.
        """
        if len(self._waiting) <= self.most:
            return []
        return self._remove(list(self._excess(self.most * 3 // 4)))  # some more, so that the next time is later

    def _excess(self, most: int) -> Iterator[UnprovenConnection]:
        by_range: dict[str, list[UnprovenConnection]] = {}
        oldest = sorted(self._waiting.values(), key=lambda connection: connection.until)
        for connection in oldest:
            by_range.setdefault(address_range(connection.origin), []).append(connection)
        if 2 * len(by_range) > most:  # a host needs two connections: a share of one is useless
            yield from oldest[: len(oldest) - most]
            return
        kept = _shares(Counter({place: len(found) for place, found in by_range.items()}), most)
        for place, found in by_range.items():
            yield from found[: len(found) - kept[place]]

    def _remove(self, found: list[UnprovenConnection]) -> list[UnprovenConnection]:
        for connection in found:
            del self._waiting[connection.descriptor]
        return found


def _shares(wanted: Counter[str], most: int) -> dict[str, int]:
    """Share `most` places out by range of addresses. Ranges that want least get all they want."""
    given = {}
    for left, (place, count) in zip(range(len(wanted), 0, -1), reversed(wanted.most_common()), strict=True):
        given[place] = min(count, most // left)
        most -= given[place]
    return given
