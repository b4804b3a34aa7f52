"""Inbound connections on which no member is proven yet: how many may be open, for how long, and which go first.

Anyone can open TCP connections, and each takes a descriptor. No socket may stand here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Stranger", "Strangers"]


@dataclass(frozen=True, slots=True)
class Stranger:
    """One inbound connection."""

    descriptor: int
    cookie: bytes
    """the kernel's name for it, which no other socket ever has"""
    origin: str
    """IP address, "" if unknown"""
    until: float
    """when it is closed if no member is proven on it by then"""


class Strangers:
    """Inbound connections by their descriptors.

    Args:
        most: bound for those open at once.
        patience: seconds that each has.
        received: bytes that have ever come on a connection.
    """

    def __init__(self, most: int, patience: float, received: Callable[[Stranger], int]) -> None:
        self.most = most
        self._patience, self._received = patience, received
        self._waiting: dict[int, Stranger] = {}
        self._proven: dict[int, tuple[Stranger, bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def accepted(self, descriptor: int, cookie: bytes, origin: str, now: float) -> None:
        self.closed(descriptor)
        self._waiting[descriptor] = Stranger(descriptor, cookie, origin, now + self._patience)

    def closed(self, descriptor: int) -> str:
        """The connection of this number is gone; where it came from."""
        if (proven := self._proven.pop(descriptor, None)) is not None:
            return proven[0].origin
        stranger = self._waiting.pop(descriptor, None)
        return "" if stranger is None else stranger.origin

    def proven(self, descriptor: int, route: bytes) -> None:
        """A member is proven on the connection that libzmq calls `route`."""
        if (stranger := self._waiting.pop(descriptor, None)) is not None:
            self._proven[descriptor] = stranger, route

    def readmitted(self, stranger: Stranger, route: bytes) -> None:
        """A connection that was to be closed is a member's after all."""
        self._proven[stranger.descriptor] = stranger, route

    def dismissed(self, descriptor: int, route: bytes, now: float, grace: float) -> None:
        """The link of the connection is over: it is closed after `grace` seconds if the other side leaves it open."""
        stranger, known = self._proven.get(descriptor, (None, b""))
        if stranger is not None and known == route:
            del self._proven[descriptor]
            self._waiting[descriptor] = Stranger(descriptor, stranger.cookie, stranger.origin, now + grace)

    def next_timer(self) -> float:
        return min((stranger.until for stranger in self._waiting.values()), default=math.inf)

    def late(self, now: float) -> list[Stranger]:
        """Those to be closed because their time is over."""
        return self._remove([stranger for stranger in self._waiting.values() if now >= stranger.until])

    def crowd(self) -> list[Stranger]:
        """Those to be closed because there are more than `most`.

        The address with the most of them loses first. Of its connections those lose that have sent the least, the
        oldest first. Where there are too many addresses for shares, all connections are compared that way. Without the
        network secret the handshake ends after its first 266 bytes, so that a host that has the secret is soon ahead of
        all strangers.
        """
        if len(self._waiting) <= self.most:
            return []
        return self._remove(list(self._excess(self.most * 3 // 4)))  # some more, so that the next look is later

    def _excess(self, most: int) -> Iterator[Stranger]:
        by_origin: dict[str, list[Stranger]] = {}
        for stranger in self._waiting.values():
            by_origin.setdefault(stranger.origin, []).append(stranger)
        if 2 * len(by_origin) > most:  # a host needs two connections: a share of one is useless
            found = sorted(self._waiting.values(), key=lambda stranger: (self._received(stranger), stranger.until))
            yield from found[: len(found) - most]
            return
        kept = _shares(Counter({origin: len(found) for origin, found in by_origin.items()}), most)
        for origin, found in by_origin.items():
            if (excess := len(found) - kept[origin]) > 0:
                found.sort(key=lambda stranger: (self._received(stranger), stranger.until))
                yield from found[:excess]

    def _remove(self, found: list[Stranger]) -> list[Stranger]:
        for stranger in found:
            del self._waiting[stranger.descriptor]
        return found


def _shares(wanted: Counter[str], most: int) -> dict[str, int]:
    """How many of `most` places each gets: those who want the least get all they want."""
    given = {}
    for left, (origin, count) in zip(range(len(wanted), 0, -1), reversed(wanted.most_common()), strict=True):
        given[origin] = min(count, most // left)
        most -= given[origin]
    return given
