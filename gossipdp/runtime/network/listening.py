"""The listening half of a peer's links: who dials in, who of them proves to be a peer, and which of them are gone.

libzmq names an inbound connection by a route, and a closed one by a number that the next one may have. Before the
proof of its hello (see `handshake`) a connection changes nothing but counters. Dials, links that are up and sockets
may not stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from gossipdp.errors import GossipdpError, RemoteProtocolError, UnreachableError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import handshake
from gossipdp.runtime.network.connections import Connection, Link, Links
from gossipdp.runtime.network.events import CopyMet, HandshakeRefused
from gossipdp.runtime.network.handshake import ListenerHello, pack

__all__ = ["REFUSALS_A_TURN", "Listening"]

REFUSALS_A_TURN: Final = 8
_PROBES: Final = (0.0, 0.02, 0.1, 0.5, 1.5)
"""seconds after a disconnect when the routes that it may have meant are probed; libzmq drops a route a little later"""


class Listening:
    """Args:

    own: tells whether a hello's nonce is one of this peer's own.
    """

    def __init__(self, links: Links, own: Callable[[bytes], bool]) -> None:
        self._links, self._own = links, own
        self._limits, self._counters = links.limits, links.counters
        self._routes: dict[bytes, Connection] = {}
        self._pending: dict[bytes, Connection] = {}
        self._suspects: list[tuple[float, Connection]] = []
        self._refusals = 0

    def arrived(
        self, route: bytes, user: str, frames: list[Buffer], size: int, source: Callable[[], tuple[str, int]]
    ) -> None:
        """See `Peering.arrived`."""
        connection = self._routes.get(route)
        if not frames:
            self._links.drop("malformed")
        elif connection is None or connection.user != user:
            self._on_stranger(route, user, frames, *source())
        elif connection.link is None:
            self._on_proof(connection, frames)
        else:
            self._links.take(connection, connection.link, frames, size)

    def connection(self, route: bytes) -> Connection | None:
        """The inbound connection that libzmq calls `route`, if its hello has come."""
        return self._routes.get(route)

    def route_on(self, descriptor: int) -> bytes:
        """The route of the link's connection that has this descriptor, or b""."""
        found = (x.route for x in self._routes.values() if x.descriptor == descriptor and x.link is not None)
        return next(found, b"")

    def refused(self, origin: str, code: str, reason: str) -> None:
        self._counters.handshakes[code] += 1
        if self._refusals < REFUSALS_A_TURN:
            self._refusals += 1
            self._links.events.append(HandshakeRefused(origin, code, reason))

    # -- the hello -----------------------------------------------------------------------------------------------

    def _on_stranger(self, route: bytes, user: str, frames: list[Buffer], origin: str, descriptor: int) -> None:
        """A first message: a hello, or nothing that counts."""
        try:
            message = handshake.unpack(frames)
        except RemoteProtocolError:
            message = None
        if not isinstance(message, handshake.Hello) or len(user) != 64:
            self._links.drop("unverified")
            if message is None:  # perhaps on a link that only the other side still believes in
                self._links.wire.answer(route, pack(handshake.Bye("no hello")))
            return
        hello = ListenerHello(self._links.me, bytes.fromhex(user))
        try:
            if self._own(message.nonce):
                raise UnreachableError("GD-101", "this address leads back to the dialler itself")
            if self._links.linked(message.id) is None and not self._links.room():
                raise UnreachableError("GD-101", f"all {self._limits.links} links are taken")
            reply = hello.hello(message)
            if self._links.shunned(message.id):
                raise UnreachableError("GD-101", "it sent more than this peer could read, and has to wait")
        except GossipdpError as error:
            self._refuse(route, origin, error)
            return
        if len(self._pending) >= self._limits.hellos:
            self._forget(next(iter(self._pending.values())), "timeout")
        connection = Connection(Lane(message.lane), hello)
        connection.route, connection.user, connection.origin = route, user, origin
        connection.descriptor = descriptor
        connection.deadline = self._links.now + self._limits.hello
        self._routes[route] = self._pending[route] = connection
        self._links.write(connection, reply)

    def _on_proof(self, connection: Connection, frames: list[Buffer]) -> None:
        hello = connection.hello
        assert isinstance(hello, ListenerHello)
        claims = hello.claims
        try:
            message = handshake.unpack(frames)
            if not isinstance(message, handshake.Proof) or hello.proven:
                raise RemoteProtocolError("not a proof")
            hello.proof(message)
            if claims.id == self._links.me.identity.id:
                self._links.events.append(CopyMet(connection.origin, claims.incarnation, claims.start))
            handshake.check_other(self._links.me.identity.id, claims.id)
            handshake.check_alone(claims.id, self._links.live(claims.id), claims.incarnation, claims.start)
        except RemoteProtocolError:
            self._links.drop("unverified")
            self._forget(connection, "broken")
            return
        except GossipdpError as error:
            self._forget(connection, "")
            self._refuse(connection.route, connection.origin, error)
            return
        self._links.learn_run(claims.run, claims.id)
        mates = {
            other.lane: other
            for other in self._pending.values()
            if isinstance(other.hello, ListenerHello)
            and other.hello.proven
            and other.hello.claims.id == claims.id
            and other.hello.claims.nonce == claims.nonce
        }
        if len(mates) == len(Lane):
            link = Link(connection.origin, inbound=True, now=self._links.now)
            link.peer, link.told_run = claims.id, hello.said_run
            link.incarnation, link.start = claims.incarnation, claims.start
            link.connections = mates
            for mate in mates.values():
                mate.link, mate.deadline = link, math.inf
                self._links.wire.prove(mate)
                del self._pending[mate.route]
                self._links.write(mate, pack(handshake.Welcome()))
            self._links.bring_up(link)

    def _refuse(self, route: bytes, origin: str, error: GossipdpError) -> None:
        self.refused(origin, error.code, error.cause)
        self._links.wire.answer(route, pack(handshake.Refuse(error.code, error.cause[:160])))

    def _forget(self, connection: Connection, result: str) -> None:
        """A connection whose hello came to nothing, and the word to count it under."""
        self._pending.pop(connection.route, None)
        self._routes.pop(connection.route, None)
        self._links.unqueue(connection)
        if result:
            self._counters.handshakes[result] += 1

    # -- who is still there --------------------------------------------------------------------------------------

    def descriptor_closed(self, descriptor: int) -> None:
        """An inbound connection is gone. Its number is used again at once, and routes of the two cannot be told apart:
        each is asked."""
        self.suspect((x for x in self._routes.values() if x.descriptor == descriptor), _PROBES)

    def suspect(self, connections: Iterable[Connection], delays: Iterable[float] = (0.0,)) -> None:
        """See after each of `delays` seconds whether `connections` are still there."""
        meant = list(connections)
        self._suspects += [(self._links.now + delay, connection) for delay in delays for connection in meant]

    def gone(self, connection: Connection) -> None:
        """libzmq has no such connection any more."""
        if connection.route in self._pending:
            self._forget(connection, "broken")

    def unroute(self, connection: Connection) -> None:
        """The link of `connection` is closed: what still comes on it comes from a stranger."""
        self._routes.pop(connection.route, None)

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self._pending and not self._suspects:
            return math.inf
        due = min((connection.deadline for connection in self._pending.values()), default=math.inf)
        return min(due, min((when for when, _ in self._suspects), default=math.inf))

    def probe(self) -> None:
        """A probe that libzmq does not take says that the connection is gone."""
        self._refusals = 0
        if not self._suspects:
            return
        waiting = []
        for when, connection in self._suspects:
            if self._routes.get(connection.route) is not connection:
                continue
            if when > self._links.now:
                waiting.append((when, connection))
            else:
                self._links.probe(connection)
        self._suspects = waiting

    def run_timers(self) -> None:
        for connection in list(self._pending.values()):
            if self._links.now >= connection.deadline:
                self._forget(connection, "timeout")
