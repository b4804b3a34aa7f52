"""What the parts of `Links` share: the objects they all use, the time of a turn, and what they ask of `Links`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.connections import Connection, Link, Wire
from gossipdp.runtime.network.events import TransportCounters, TransportEvent
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.local_peer import LocalPeer

__all__ = ["LinkTable", "LinksContext", "Turn"]


class Turn:
    """The time of the transport's present turn, and the events that wait for the driver."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.events: list[TransportEvent] = []

    def begin(self, now: float) -> None:
        self.now = now

    def tell(self, *events: TransportEvent) -> None:
        self.events.extend(events)

    def take(self) -> list[TransportEvent]:
        events, self.events = self.events, []
        return events


@dataclass(frozen=True, slots=True)
class LinksContext:
    """The objects that every part of `Links` uses."""

    me: LocalPeer
    wire: Wire
    limits: TransportLimits
    counters: TransportCounters
    turn: Turn
    proxied: bool = False
    """dials go through a proxy, which resolves names"""

    def drop(self, reason: str, count: int = 1) -> bool:
        """Count `count` dropped messages; False."""
        if count:
            self.counters.drops[reason] += count
        return False


class LinkTable(Protocol):
    """What the dialling and the listening part ask of `Links`."""

    def room(self, host: str = "") -> bool:
        """Whether one more link fits, with a peer at the IP address `host`, in the place of another if need be."""

    def linked(self, peer: bytes) -> Link | None: ...

    def live(self, peer: bytes) -> tuple[int, bytes] | None:
        """Incarnation and start of the daemon at the other end of the link with `peer`; None without a link."""

    def shunned(self, peer: bytes) -> bool:
        """Whether `peer` gets no link for now because it sent more than this peer could read."""

    def bring_up(self, link: Link) -> Link:
        """`link` is verified. Returns the link on which messages to its peer are sent from now on."""

    def take(self, connection: Connection, link: Link, frames: list[Buffer], size: int) -> None:
        """A message came on a verified connection."""

    def learn_run(self, run: bytes, peer: bytes) -> None:
        """A verified peer belongs to `run`."""

    def close_connections(self, link: Link, linger: float = 0.0) -> None: ...

    def seen_at(self, host: str) -> None:
        """A listener sees this peer come from the IP address `host`."""

    def attends(self, relay: bytes) -> bool:
        """Whether this peer has asked `relay` to carry to it."""

    def reach(self, peer: bytes, lane: Lane, frames: Sequence[Buffer]) -> None:
        """Send to the relay `peer`. A link with it is made first."""

    def dialled_back(self, asker: bytes, address: str, *, met: bool, tried: bool) -> None:
        """What came of the dial for which `asker` asked. tried: its host has this address."""
