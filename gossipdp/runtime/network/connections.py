"""What is kept of one connection, one link and one dial, and what the parts of a peering ask of each other. Records and
interfaces; nothing may happen here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.events import TransportCounters, TransportEvent, TransportLimits
from gossipdp.runtime.network.handshake import DiallerHello, ListenerHello, Self
from gossipdp.runtime.network.resolver import Target


class Connection:
    """One of the two connections of a link: an own DEALER, or a route of the ROUTER."""

    def __init__(self, lane: Lane, hello: DiallerHello | ListenerHello) -> None:
        self.lane = lane
        self.hello = hello
        self.link: Link | None = None
        self.handle: Any = None
        """the wire's, for a dialled connection"""
        self.route = b""
        self.user = ""
        """what CURVE said of a route's peer"""
        self.origin = ""
        self.descriptor = -1
        self.deadline = math.inf
        self.proof_sent = False
        self.heard = self.said = 0.0
        """times of the last message that came, and of the last that was sent"""
        self.queue: deque[tuple[Sequence[Buffer], int]] = deque()
        self.queued_bytes = 0


class Link:
    """`dial` is set while the link is not up yet; inbound links are made when they are up."""

    def __init__(self, address: str, *, inbound: bool, now: float) -> None:
        self.peer = b""
        self.address = address
        self.inbound = inbound
        self.incarnation = 0
        self.start = b""
        self.told_run = b""
        self.connections: dict[Lane, Connection] = {}
        self.dial: Dial | None = None
        self.opened = self.used = now
        self.retired = math.inf

    def rank(self, me: bytes) -> tuple[int, bool]:
        """Of two links with one peer the higher rank stays, at equal rank the newer: later starts of the peer first,
        then the link that the lower id dialled. Both ends come to the same answer."""
        return self.incarnation, (min(me, self.peer) == self.peer) == self.inbound


class Dial:
    """One address being dialled, and what waits for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.wanted: set[bytes] = set()
        """whom messages wait for"""
        self.askers: set[bytes] = set()
        """who asked to be dialled back there"""
        self.targets: deque[Target] = deque()
        self.target = ""
        self.failures: list[Cause] = []
        """of each address tried; their texts begin with it"""
        self.began = -math.inf
        """when the address tried now was dialled"""
        self.opened = False
        """CURVE is done there on one connection"""
        self.looking = ""
        """under which key a second look at it comes back"""
        self.leads_back = False
        """this peer itself answers there"""
        self.ours = False
        """this peer's own lists keep out who is there"""
        self.link: Link | None = None
        self.nonce = b""
        self.deadline = math.inf
        self.queue: deque[tuple[bytes, Lane, Sequence[Buffer], int]] = deque()
        self.queued_bytes = 0


class Wire(Protocol):
    """What the sockets can do. None of it blocks."""

    def open(self, connection: Connection, endpoint: str) -> None:
        """Dial; OSError if there is no socket left."""

    def push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        """Hand over one message; False if the connection is full, BrokenPipeError if it is gone."""

    def answer(self, route: bytes, frames: Sequence[Buffer]) -> None:
        """Say something to an inbound connection; a full or vanished one does not hear it."""

    def prove(self, connection: Connection) -> None:
        """A member is proven on this inbound connection."""

    def dismiss(self, connection: Connection) -> None:
        """The link of this inbound connection is over: close it soon, once last words have left."""

    def shut(self, connection: Connection, linger: float) -> None:
        """Close a dialled connection; what has been handed over has `linger` seconds to leave."""


class Links(Protocol):
    """The links as a whole, to which the dialling and the listening half belong."""

    now: float
    me: Self
    wire: Wire
    limits: TransportLimits
    counters: TransportCounters
    events: list[TransportEvent]

    def write(self, connection: Connection, frames: Sequence[Buffer], size: int = 0) -> bool:
        """Send, or queue if the connection is full. `size` 0 marks a service message."""

    def unqueue(self, connection: Connection) -> None:
        """What waits for `connection` is not sent any more."""

    def probe(self, connection: Connection) -> None:
        """See whether an inbound connection is there."""

    def fits(self, messages: int, queued: int, size: int) -> bool:
        """Is there room for `size` bytes in a queue of so many messages and bytes?"""

    def drop(self, reason: str, count: int = 1) -> bool:
        """Count what was dropped; False."""

    def room(self) -> bool:
        """Is there room for one more link, if need be that of the one longest unused?"""

    def linked(self, peer: bytes) -> Link | None: ...

    def live(self, peer: bytes) -> tuple[int, bytes] | None:
        """Incarnation and start of the daemon at the other end of the link with `peer`, if there is one."""

    def shunned(self, peer: bytes) -> bool:
        """Whether `peer` gets no link for now because it sent more than this peer could read."""

    def bring_up(self, link: Link) -> Link:
        """`link` is verified; returns the one on which its peer is sent to from now on."""

    def take(self, connection: Connection, link: Link, frames: list[Buffer], size: int) -> None:
        """A message on a verified connection."""

    def learn_run(self, run: bytes, peer: bytes) -> None:
        """A verified peer belongs to `run`."""

    def close_connections(self, link: Link, linger: float = 0.0) -> None: ...

    def tell_in_vain(self, asker: bytes, address: str) -> None:
        """`asker` was not met at the `address` it asked to be dialled back at."""
