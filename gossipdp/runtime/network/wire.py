"""What sockets and relayed connections report to `Links`. Plain data; no socket may stand here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.connections import Connection, Wire
from gossipdp.runtime.network.dial_causes import Cause

__all__ = ["Answered", "Arrived", "Closed", "Ended", "Failed", "Gone", "Opened", "Overflowed", "Refused", "WireEvent"]


@dataclass(frozen=True, slots=True)
class Opened:
    """CURVE is complete on a dialled connection."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Answered:
    """A message of `size` bytes came on a dialled connection."""

    connection: Connection
    frames: list[Buffer]
    size: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A dialled connection was not made. `result` is the label of the count."""

    connection: Connection
    cause: Cause
    result: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A dialled or relayed connection is over. Everything that had arrived on it was reported before."""

    connection: Connection
    reason: str = "closed by the other side"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came on an inbound connection.

    route: libzmq's name for the connection.
    user: the CURVE key of the connection, as hexadecimal digits; "" if unknown.
    size: of all frames together, in bytes.
    source: returns the IP address that the connection came from, and the descriptor that `Gone` will name.
    wire: what the connection is one of.
    relay, expected: the member that carries the connection, and the peer that it is from, as the relay says; b"" of
        others.
    lane: on which it is carried; None of others, whose hello names it.
    """

    route: bytes
    user: str
    frames: list[Buffer]
    size: int
    source: Callable[[], tuple[str, int]]
    wire: Wire
    relay: bytes = b""
    expected: bytes = b""
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """The inbound connection with this descriptor is closed."""

    descriptor: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The relayed inbound connection of this route is closed, and no member was proven on it."""

    route: bytes


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A connection, or the inbound one with this route, sent more than this peer could read: `unread` messages."""

    over: bytes | Connection
    unread: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An inbound connection from `origin` was refused before its hello."""

    origin: str
    code: str
    reason: str


WireEvent: TypeAlias = Opened | Answered | Failed | Ended | Arrived | Gone | Closed | Overflowed | Refused
