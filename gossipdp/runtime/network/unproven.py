"""Inbound connections without a proven member: how many may be open, for how long, and which are closed first.

Anyone can open TCP connections, and each takes a descriptor. No socket may stand here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Unproven", "UnprovenConnection"]


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
        """A connection that `late` or `crowd` returned belongs to a member after all."""
        self._proven[connection.descriptor] = connection, route

    def dismissed(self, descriptor: int, route: bytes, now: float, grace: float) -> None:
        """The link of the connection is over. It is closed after `grace` seconds if the other side leaves it open."""
        proven, known = self._proven.get(descriptor, (None, b""))
        if proven is not None and known == route:
            del self._proven[descriptor]
            self._waiting[descriptor] = UnprovenConnection(descriptor, proven.cookie, proven.origin, now + grace)

    def next_timer(self) -> float:
        return min((connection.until for connection in self._waiting.values()), default=math.inf)

    def late(self, now: float) -> list[UnprovenConnection]:
        """Remove and return the connections whose time is over."""
        return self._remove([connection for connection in self._waiting.values() if now >= connection.until])

    def crowd(self) -> list[UnprovenConnection]:
        """Remove and return the connections to close because there are more than `most`.

        The address with the most connections loses first. Of its connections those that sent least lose first, the
        oldest among equals. With too many addresses for shares, all connections are compared this way. Without the
        network secret a handshake ends after its first 266 bytes, so a host with the secret soon ranks higher.
        """
        if len(self._waiting) <= self.most:
            return []
        return self._remove(list(self._excess(self.most * 3 // 4)))  # some more, so that the next time is later

    def _excess(self, most: int) -> Iterator[UnprovenConnection]:
        by_origin: dict[str, list[UnprovenConnection]] = {}
        for connection in self._waiting.values():
            by_origin.setdefault(connection.origin, []).append(connection)
        if 2 * len(by_origin) > most:  # a host needs two connections: a share of one is useless
            found = sorted(self._waiting.values(), key=self._order)
            yield from found[: len(found) - most]
            return
        kept = _shares(Counter({origin: len(found) for origin, found in by_origin.items()}), most)
        for origin, found in by_origin.items():
            if (excess := len(found) - kept[origin]) > 0:
                found.sort(key=self._order)
                yield from found[:excess]

    def _order(self, connection: UnprovenConnection) -> tuple[int, float]:
        return self._received(connection), connection.until

    def _remove(self, found: list[UnprovenConnection]) -> list[UnprovenConnection]:
        for connection in found:
            del self._waiting[connection.descriptor]
        return found


def _shares(wanted: Counter[str], most: int) -> dict[str, int]:
    """Share `most` places out by origin. Origins that want least get all they want."""
    given = {}
    for left, (origin, count) in zip(range(len(wanted), 0, -1), reversed(wanted.most_common()), strict=True):
        given[origin] = min(count, most // left)
        most -= given[origin]
    return given
