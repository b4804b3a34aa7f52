"""What is kept of one connection, one link and one dial, and what a set of links asks of its sockets. Plain records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from gossipdp.protocol.messages import Lane
from gossipdp.protocol.wire import Buffer
from gossipdp.runtime.handshake import DiallerHello, ListenerHello
from gossipdp.runtime.resolver import Target


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
        self.queue: deque[tuple[Sequence[Buffer], int]] = deque()
        self.queued_bytes = 0


class Link:
    """`dial` is set while the link is not up yet; inbound links are made when they are up."""

    def __init__(self, address: str, *, inbound: bool, now: float) -> None:
        self.peer = b""
        self.address = address
        self.inbound = inbound
        self.incarnation = 0
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
        self.targets: deque[Target] = deque()
        self.target = ""
        self.failures: list[tuple[str, str]] = []
        """(code, text) for each address tried"""
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

    def shut(self, connection: Connection, linger: float) -> None:
        """Close a dialled connection; what has been handed over has `linger` seconds to leave."""
