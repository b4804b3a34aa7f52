"""What a transport tells its driver, what it counts, and how far it may go. Plain data; no socket may stand here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, short

MAX_COUNTED_PEERS: Final = 4096
"""traffic of peers past this many is counted under b"", so that minting identities costs no memory here"""


@dataclass(frozen=True, slots=True)
class TransportEvent:
    """Base of all transport events."""


@dataclass(frozen=True, slots=True)
class Received(TransportEvent):
    """One message of a verified peer. Frames past 4 KiB are memoryviews over libzmq's own memory, not copies."""

    peer: bytes
    lane: Lane
    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class LinkUp(TransportEvent):
    """The peer is verified on both connections. `address`: as dialled, or the IP an inbound link came from."""

    peer: bytes
    address: str
    inbound: bool
    incarnation: int


@dataclass(frozen=True, slots=True)
class LinkDown(TransportEvent):
    """No link to the peer is left."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed(TransportEvent):
    """`reason` names each address tried and what came of it; `dial_causes` has the words.
    `peer` is b"" when only the address was known.

    code: GD-101 nobody answers; GD-104 no socket left here; GD-201 wrong network secret, or a proxy in front of nobody;
    GD-202 an identity was not proven; GD-203 another network or run; GD-204 this peer's key is banned there, or not
    allowed, or that one's here; GD-205 this identity is live there; GD-302 another protocol version.
    """

    peer: bytes
    address: str
    reason: str
    code: str
    ours: bool = False
    """GD-204 by this peer's own lists"""
    do: str = field(default="", compare=False)
    """What to do about it, where the code alone does not tell."""


@dataclass(frozen=True, slots=True)
class HandshakeRefused(TransportEvent):
    """This peer refused somebody who dialled in. `address` is where from, as far as known; codes as in DialFailed."""

    address: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class CopyMet(TransportEvent):
    """Another live daemon has proven that it has this peer's key; see `copies`. Told at least once a meeting."""

    address: str
    incarnation: int
    start: bytes


@dataclass(frozen=True, slots=True)
class Flooded(TransportEvent):
    """The link of `peer` was closed because `unread` of its messages were waiting here."""

    peer: bytes
    unread: int


@dataclass(frozen=True, slots=True)
class Crowded(TransportEvent):
    """More than `most` inbound connections had no proven member. Some were closed, and most came from `address`.

    Told once a minute at the most.
    """

    address: str
    most: int


@dataclass(frozen=True, slots=True)
class RunLearned(TransportEvent):
    """A peer that knew no run has heard it from a verified one, and is of that run from now on."""

    run: bytes
    peer: bytes


@dataclass(frozen=True, slots=True)
class Dialable(TransportEvent):
    """Whether others can dial this peer at the `address` it advertises, whenever that turns out to be otherwise than
    thought. If not, `opinions` times a member has tried in vain; then it is to be outbound-only (GD-102)."""

    address: str
    dialable: bool
    opinions: int


def told(event: HandshakeRefused | Crowded | Flooded) -> tuple[str, str]:
    """Code and text of an event that only the operator needs to know."""
    match event:
        case HandshakeRefused(address, code, reason):
            return code, f"from {address or 'an unknown address'}: {reason}"
        case Crowded(address, most):
            return "GD-104", f"more than {most} unfinished connections, most from {address}: the oldest are closed"
        case Flooded(peer, unread):
            return "GD-402", f"the link of {short(peer)} is closed: {unread} of its messages were waiting to be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Times in seconds."""

    handshake: float = 1.0
    """for CURVE, once TCP is connected; at libzmq's 30 s, 300 idle strangers lock honest peers out"""
    connect: float = 4.0
    """for TCP and CURVE, each resolved address; one lost SYN costs 1 s, a second one 2 s more"""
    hello: float = 2.0
    """for the signed hello, once CURVE is done"""
    heartbeat: float = 1.5
    """between words on a quiet connection; after 4 without one on the control lane the dialler closes the
    link, after 11 the listener, after 64 on the data lane either"""
    redial: float = 0.5
    """after a failed dial nothing is dialled at that address before this"""
    dial_back: float = 10.0
    """between the rounds in which a peer that nobody has dialled asks others to; each of these does so twice as often
    at the most"""
    idle: float = 60.0
    """a link unused for so long is closed by its dialler; after twice as long by its listener"""
    drain: float = 2.0
    """a link that was given up for a better one is still read for so long"""
    links: int = 128
    dials: int = 32
    hellos: int = 128
    """inbound connections between hello and proof"""
    queue_messages: int = 1024
    """waiting for one lane of one link, or for one dial"""
    queue_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    """waiting for all of them together ([safety] memory); the same three bounds hold for what arrived and is unread"""
    shun: float = 10.0
    """a peer that sent more than these bounds gets no link for so long"""
    turn: int = 64
    """messages taken from one socket in one turn"""


@dataclass(slots=True)
class TransportCounters:
    """Everything a transport counts. Bytes are those of whole frames of protocol messages, header included."""

    sent_bytes: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    sent_messages: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    received_bytes: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    received_messages: Counter[tuple[bytes, Lane]] = field(default_factory=Counter)
    handshakes: Counter[str] = field(default_factory=Counter)
    """by result: ok, unreachable, timeout, broken, mechanism (no CURVE), crowded (closed to make room), GD-nnn"""
    drops: Counter[str] = field(default_factory=Counter)
    """by reason: own (unroutable, redial, links, queue, unreachable, link down), others' (unverified, malformed,
    flood)"""
    full: int = 0
    """sends that met a full connection and waited in the queue"""

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
    """One link as `status` shows it; `idle` and `age` in seconds."""

    peer: bytes
    address: str
    inbound: bool
    incarnation: int
    idle: float
    age: float
    queued: int
