"""What is kept of one connection, one link and one dial, and what a connection can do. No message is sent here."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.resolver import Target
from gossipdp.runtime.network.signed_hello import DiallerHello, ListenerHello

__all__ = ["Connection", "Dial", "Link", "Wire"]

MAX_TRIED: Final = 8
"""attempts of one dial: a member may name four addresses, and a name may stand for several"""


class Wire(Protocol):
    """What the sockets can do. No method blocks."""

    def open(self, connection: Connection, endpoint: str) -> None:
        """Dial `endpoint`. Raises OSError if no socket is left."""

    def push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        """Hand over one message of `size` bytes.

        Returns:
            False if the connection is full.

        Raises:
            BrokenPipeError: the connection is gone.
        """

    def answer(self, route: bytes, frames: Sequence[Buffer]) -> None:
        """Send to an inbound connection. A full or closed connection loses the message."""

    def prove(self, connection: Connection) -> None:
        """A member is proven on this inbound connection."""

    def dismiss(self, connection: Connection) -> None:
        """The link of this inbound connection is over: close the connection soon, after its last messages."""

    def shut(self, connection: Connection, linger: float) -> None:
        """Close a dialled connection. Messages handed over still have `linger` seconds to leave."""


class Connection:
    """One of the two connections of a link.

    Args:
        wire: what it is a connection of.
        link: the link it belongs to; None for an inbound connection whose link is not up yet.
        route: libzmq's name for an inbound connection; b"" for a dialled one.
        user: the CURVE key of an inbound connection's peer, as hexadecimal digits.
        origin: the IP address that an inbound connection came from.
        descriptor: the number of an inbound connection's socket.
        via: the member that carries an inbound connection; b"" of a direct one.
        deadline: when an inbound connection must be verified, in seconds.
    """

    def __init__(
        self,
        lane: Lane,
        hello: DiallerHello | ListenerHello,
        wire: Wire,
        link: Link | None = None,
        *,
        route: bytes = b"",
        user: str = "",
        origin: str = "",
        descriptor: int = -1,
        via: bytes = b"",
        deadline: float = math.inf,
    ) -> None:
        self.lane, self.hello, self.wire, self.link = lane, hello, wire, link
        self.route, self.user, self.origin, self.descriptor = route, user, origin, descriptor
        self.via, self.deadline = via, deadline
        self.proof_sent = False
        self.heard = self.said = 0.0
        """times of the last message received and of the last message sent"""
        self.queue: deque[tuple[Sequence[Buffer], int]] = deque()
        """frames and size of the messages that wait until the connection takes them; size 0 marks a service message"""
        self.queued_bytes = 0

    def bind(self, key: bytes) -> None:
        """The dialled connection is relayed, and this is its binding (`sealing`)."""
        assert isinstance(self.hello, DiallerHello)
        self.hello.bind(key)

    def join(self, link: Link) -> None:
        """The hello is complete: the connection belongs to `link`."""
        self.link, self.deadline = link, math.inf

    def hear(self, now: float) -> None:
        self.heard = now

    def say(self, now: float) -> None:
        self.said = now

    def sent_proof(self, sent: bool) -> None:
        self.proof_sent = sent

    def enqueue(self, frames: Sequence[Buffer], size: int) -> None:
        self.queue.append((frames, size))
        self.queued_bytes += size

    def dequeue(self) -> None:
        """Remove the first message of the queue."""
        _, size = self.queue.popleft()
        self.queued_bytes -= size

    def clear_queue(self) -> None:
        self.queue.clear()
        self.queued_bytes = 0


class Link:
    """Two connections with one peer, one for each lane.

    Args:
        address: as dialled, or the IP address that an inbound link came from.
        host: the IP address at the other end; "" of a relayed link.
        via: the member that carries it; b"" of a direct link.
        dial: the dial that makes the link; None for an inbound link, which is up when it is made.
        connections: both connections of an inbound link.
    """

    def __init__(
        self,
        address: str,
        host: str,
        *,
        inbound: bool,
        now: float,
        via: bytes = b"",
        dial: Dial | None = None,
        connections: dict[Lane, Connection] | None = None,
    ) -> None:
        self.peer, self.via = b"", via
        self.address, self.host, self.inbound, self.dial = address, host, inbound, dial
        self.incarnation = self.generation = 0
        self.start = b""
        self.told_run = b""
        """the run that the other side knows"""
        self.connections: dict[Lane, Connection] = connections or {}
        self.opened = self.used = now
        self.retired = math.inf
        """when a link that a better one replaced is closed"""

    def verify(self, peer: bytes, incarnation: int, start: bytes, told_run: bytes, generation: int) -> None:
        """`peer` is proven on both connections, with this generation of the network's secret."""
        self.generation = generation
        self.peer, self.incarnation, self.start, self.told_run = peer, incarnation, start, told_run
        self.dial = None

    def use(self, now: float) -> None:
        self.used = now

    def retire(self, until: float) -> None:
        self.retired = until

    def tell_run(self, run: bytes) -> None:
        self.told_run = run

    def rank(self, me: bytes) -> tuple[int, bool, bool]:
        """Order of two links with one peer: the higher rank stays, and at equal rank the newer link.

        Later starts of the peer rank first, then direct links, then the link that the lower id dialled. Both ends rank
        equally.
        """
        return self.incarnation, not self.via, (min(me, self.peer) == self.peer) == self.inbound


class Dial:
    """One peer being dialled, at one address after the other, and the messages that wait for it.

    Args:
        address: the peer's first address, which names the dial.
        places: its addresses, in the order in which they are tried.
        asked: the IP address of the members that asked for it. No message waits then. "" for this peer's own dials.
        until: when it is over.
    """

    def __init__(self, address: str, places: Sequence[str], *, asked: str = "", until: float = math.inf) -> None:
        self.address, self.asked, self._until = address, asked, until
        self.key = (address, asked)
        self.places = deque(places)
        """addresses that are not tried yet"""
        self.place = ""
        """the address tried now"""
        self.resolving = False
        """the name in `place` is being looked up"""
        self.tried = 0
        """attempts"""
        self.patience = 0.0
        """seconds that the present attempt waits for a connection"""
        self.wanted: set[bytes] = set()
        """peers that messages wait for"""
        self.askers: set[bytes] = set()
        """members that asked to be dialled back there"""
        self.targets: deque[Target] = deque()
        """IP addresses of `place` that are not tried yet"""
        self.target = ""
        """the IP address tried now"""
        self._tried: Target | None = None
        self.generation: int | None = None
        """of the network's secret, if the other side did not take the newest one"""
        self.refusal = ""
        """why it did not take that"""
        self.failures: list[Cause] = []
        """one for each IP address tried"""
        self.began = -math.inf
        """when the present attempt began"""
        self.opened = False
        """CURVE is complete on one connection of the present attempt"""
        self.led_back = False
        """the present attempt has met this peer itself"""
        self.look = ""
        """key of the second look at the address, while one is under way"""
        self.ours = False
        """this peer's own lists exclude the peer there"""
        self.link: Link | None = None
        self.nonce = b""
        self.deadline = math.inf
        self.queue: deque[tuple[bytes, Lane, Sequence[Buffer], int]] = deque()
        self.queued_bytes = 0

    @property
    def more(self) -> bool:
        """Whether addresses are left to try."""
        return bool(self.targets or self.places) and self.tried < MAX_TRIED

    def next_place(self) -> str:
        """Go on to the next address."""
        self.place = self.places.popleft()
        return self.place

    def await_name(self, resolving: bool) -> None:
        self.resolving = resolving

    def begin_attempt(self, target: Target, nonce: bytes, now: float, patience: float, handshake: float) -> Link:
        """Try `target`; returns the link that it is to become."""
        if target is not self._tried:
            self._tried, self.generation, self.refusal = target, None, ""
        self.target, self.nonce, self.began = target.text, nonce, now
        self.deadline = min(now + patience + handshake, self._until)
        self.opened, self.led_back, self.look, self.patience = False, False, "", patience
        self.tried += 1
        self.link = Link(self.place, target.host, inbound=False, now=now, via=target.relay, dial=self)
        return self.link

    def try_again(self, older: Sequence[int], refusal: str) -> bool:
        """Try the same IP address with the next older generation of the secret. False if there is none.

        Args:
            older: generations that may be tried, the newest first.
            refusal: why the other side did not take the last one. The first is kept.
        """
        left = [each for each in older if self.generation is None or each < self.generation]
        if not left or self._tried is None or self.tried >= MAX_TRIED:
            return False
        self.generation, self.refusal = left[0], self.refusal or refusal
        self.targets.appendleft(self._tried)
        return True

    def skip(self, target: str) -> None:
        """Give `target` up without an attempt."""
        self.target = target

    def open(self, deadline: float) -> None:
        """CURVE is complete on one connection; the hello must be over at `deadline`."""
        self.opened, self.deadline = True, min(deadline, self._until)

    def lead_back(self) -> None:
        """The present attempt has met this peer itself."""
        self.led_back = True

    def end_attempt(self) -> None:
        self.link = None

    def await_look(self, key: str) -> None:
        """A second look under `key` will tell the cause."""
        self.look, self.deadline = key, math.inf

    def exclude(self) -> None:
        self.ours = True

    def enqueue(self, to: bytes, lane: Lane, frames: Sequence[Buffer], size: int) -> None:
        self.wanted.add(to)
        self.queue.append((to, lane, frames, size))
        self.queued_bytes += size

    def take_messages(self, peer: bytes) -> list[tuple[Lane, Sequence[Buffer], int]]:
        """Remove and return the messages that wait for `peer`."""
        taken = [(lane, frames, size) for to, lane, frames, size in self.queue if to == peer]
        self.queue = deque(message for message in self.queue if message[0] != peer)
        self.queued_bytes -= sum(size for _, _, size in taken)
        return taken
