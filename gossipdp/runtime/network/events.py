"""Events of a transport, and its counters. Plain data; no socket may stand here. The limits are in `limits`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Decision, Lane, Receipt, short
from gossipdp.runtime.network.dial_causes import Cause, foremost

MAX_COUNTED_PEERS: Final = 4096
"""the traffic of peers past this number is counted under b"", so that new identities cost no memory here"""


@dataclass(frozen=True, slots=True)
class TransportEvent:
    """Base of all transport events."""


@dataclass(frozen=True, slots=True)
class Received(TransportEvent):
    """One message of a verified peer. Frames past 4 KiB are memoryviews of libzmq's own memory, not copies."""

    peer: bytes
    lane: Lane
    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class LinkUp(TransportEvent):
    """The peer is verified on both connections.

    address: as dialled, or the IP an inbound link came from; "" of an inbound relayed link.
    via: the member that carries the link; b"" of a direct one.
    """

    peer: bytes
    address: str
    inbound: bool
    incarnation: int
    via: bytes = b""


@dataclass(frozen=True, slots=True)
class CarriedBy(TransportEvent):
    """The member `relay` carries to this peer what others send it, or does not, and why."""

    relay: bytes
    taken: bool
    reason: str


@dataclass(frozen=True, slots=True)
class LinkDown(TransportEvent):
    """No link to the peer is left."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed(TransportEvent):
    """A dial failed at every address of its name.

    peer: b"" if only the address was known.
    causes: what came of each address tried.
    code: GD-101 no answer; GD-104 no socket left here; GD-201 wrong network secret, or a proxy without its peer;
        GD-202 an identity was not proven; GD-203 another network or run; GD-204 one side's lists exclude the other;
        GD-205 this identity is live there; GD-208 not the network's present secret; GD-302 another protocol version.
    """

    peer: bytes
    address: str
    causes: tuple[Cause, ...]
    ours: bool = False
    """this peer's own lists exclude the other (GD-204)"""

    @property
    def code(self) -> str:
        return foremost(self.causes).code

    @property
    def do(self) -> str:
        """What to do, where the advice for the code is not enough."""
        return foremost(self.causes).do

    @property
    def reason(self) -> str:
        """Each address tried and what came of it, in words."""
        return "; ".join(cause.told() for cause in self.causes)


@dataclass(frozen=True, slots=True)
class HandshakeRefused(TransportEvent):
    """This peer refused an inbound connection from `address`, "" if unknown. Codes as in DialFailed."""

    address: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class InviteShown(TransportEvent):
    """A host shows an invite, and waits for `Transport.answer_invite`. Its id is that of the connection's key.

    route: of the connection.
    """

    address: str
    route: bytes
    decision: Decision
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class CopyMet(TransportEvent):
    """Another live daemon proved that it has this peer's key (see `duplicate_identity`). At least one a meeting."""

    address: str
    incarnation: int
    start: bytes


@dataclass(frozen=True, slots=True)
class Flooded(TransportEvent):
    """The link of `peer` was closed because `unread` of its messages waited here."""

    peer: bytes
    unread: int


@dataclass(frozen=True, slots=True)
class Crowded(TransportEvent):
    """More than `most` inbound connections had no proven member, most of them from `address`. Some were closed.

    At most one a minute.
    """

    address: str
    most: int


@dataclass(frozen=True, slots=True)
class RunLearned(TransportEvent):
    """This peer had no run and heard it from the verified `peer`. It belongs to `run` from now on."""

    run: bytes
    peer: bytes


@dataclass(frozen=True, slots=True)
class Dialable(TransportEvent):
    """Members can dial this peer at `addresses`, of those that it advertises. Told whenever that changes.

    addresses: empty if members cannot dial this peer. It becomes outbound-only (GD-102).
    dropped: addresses that were dialled in vain.
    opinions: failed attempts of members at them.
    found: addresses that this peer does not advertise, at which members see it come and have dialled it.
    """

    addresses: tuple[str, ...]
    dropped: tuple[str, ...]
    opinions: int
    found: tuple[str, ...] = ()


def code_and_text(event: HandshakeRefused | Crowded | Flooded) -> tuple[str, str]:
    """Code and text of an event that only the operator needs to know."""
    match event:
        case HandshakeRefused(address, code, reason):
            return code, f"from {address or 'an unknown address'}: {reason}"
        case Crowded(address, most):
            return "GD-104", f"more than {most} unfinished connections, most from {address}: the oldest are closed"
        case Flooded(peer, unread):
            return "GD-402", f"the link of {short(peer)} is closed: {unread} of its messages were waiting to be read"


@dataclass(frozen=True, slots=True)
class DialledBack(TransportEvent):
    """A member answers the question of `Transport.ask_to_dial_back`.

    met: it dialled `address`, and met this peer there.
    tried: a route leads there from the member.
    """

    peer: bytes
    address: str
    met: bool
    tried: bool


@dataclass(frozen=True, slots=True)
class Measured(TransportEvent):
    """A member answers the question of `Transport.measure`.

    clock: seconds since 1970, as the member's system clock has it.
    received: bytes of filler that the member got.
    filler: bytes of filler that came back.
    """

    peer: bytes
    number: int
    clock: float
    received: int
    filler: int


@dataclass(slots=True)
class TransportCounters:
    """Everything a transport counts. Bytes are of whole frames of protocol messages, headers included."""

    sent_bytes: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    sent_messages: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    received_bytes: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    received_messages: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    handshakes: Counter[str] = field(default_factory=Counter)
    """by result: ok, unreachable, timeout, broken, mechanism (no CURVE), crowded (closed to make room), or a code"""
    drops: Counter[str] = field(default_factory=Counter)
    """by reason. Messages to send: unroutable, redial, links, queue, unreachable, link down. Messages received:
    unverified, malformed, flood."""
    carried_bytes: Counter[Lane] = field(default_factory=Counter)
    """of other members' messages, as a relay"""
    not_carried: int = 0
    """messages of other members that were refused"""
    relayed_bytes: Counter[Lane] = field(default_factory=Counter)
    """received over links that other members carry"""
    full: int = 0
    """sends that met a full connection and waited in its queue"""

    def count_full(self) -> None:
        self.full += 1

    def count_carried(self, lane: Lane, size: int) -> None:
        self.carried_bytes[lane] += size

    def count_relayed(self, lane: Lane, size: int) -> None:
        self.relayed_bytes[lane] += size

    def count_not_carried(self) -> None:
        self.not_carried += 1

    def count_sent(self, peer: bytes, lane: Lane, size: int) -> None:
        key = (peer, lane)
        if key not in self.sent_bytes and len(self.sent_bytes) >= MAX_COUNTED_PEERS:
            key = (b"", lane)
        self.sent_bytes[key] += size
        self.sent_messages[key] += 1

    def count_received(self, peer: bytes, lane: Lane, size: int) -> None:
        key = (peer, lane)
        if key not in self.received_bytes and len(self.received_bytes) >= MAX_COUNTED_PEERS:
            key = (b"", lane)
        self.received_bytes[key] += size
        self.received_messages[key] += 1


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One link as `status` shows it. `idle` and `age` in seconds, `queued` in messages."""

    peer: bytes
    address: str
    inbound: bool
    incarnation: int
    idle: float
    age: float
    queued: int
    generation: int = 0
    """of the network's secret, which both sides have proven"""
    via: bytes = b""
    """the member that carries the link"""
