"""Listening: which connections came in, which of them prove a member, and which are gone.

libzmq names an inbound connection by a route. It reports a closed one by a descriptor number, which the next connection
may get. Before the proof of its hello (`signed_hello`) a connection changes only counters. No socket may stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gossipdp.errors import GossipdpError, MismatchError, RefusedError, RemoteProtocolError, UnreachableError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, Receipt, short
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Connection, Link, Wire
from gossipdp.runtime.network.context import LinksContext, LinkTable
from gossipdp.runtime.network.dial_causes import LEADS_BACK
from gossipdp.runtime.network.events import CopyMet, HandshakeRefused, InviteShown
from gossipdp.runtime.network.identity import curve_public_key
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import ListenerHello, pack
from gossipdp.runtime.network.wire import Arrived

__all__ = ["REFUSALS_A_TURN", "Listening"]

REFUSALS_A_TURN: Final = 8
"""refusals that are told in one turn; the counters count all"""
INVITES_A_TURN: Final = 8
"""invites that are looked at in one turn; each costs the check of two signatures"""
PROBE_AFTER: Final = (0.0, 0.02, 0.1, 0.5, 1.5)
"""seconds after a disconnect when the routes it may have meant are probed; libzmq drops a route a little later"""


class Listening:
    """Connections that other peers have opened.

    Args:
        own: whether this peer itself sent the hello with a given nonce.
    """

    def __init__(
        self, context: LinksContext, queues: SendQueues, links: LinkTable, own: Callable[[bytes], bool]
    ) -> None:
        self._context, self._queues, self._links, self._own = context, queues, links, own
        self._limits, self._turn = context.limits, context.turn
        self._routes: dict[bytes, Connection] = {}
        """every inbound connection whose hello has come"""
        self._pending: dict[bytes, Connection] = {}
        """those of `_routes` whose link is not up"""
        self._suspects: list[tuple[float, Connection]] = []
        """connections that may be gone, and when each is probed"""
        self._refusals = self._invites = 0
        """refusals, and invites shown, in this turn"""

    def arrived(self, message: Arrived) -> None:
        """A message came on an inbound connection."""
        connection = self._routes.get(message.route)
        if not message.frames:
            self._context.drop("malformed")
        elif connection is None or connection.user != message.user:
            self._on_first_message(message, *message.source())
        elif connection.link is None:
            self._on_proof(connection, message.frames)
        else:
            self._links.take(connection, connection.link, message.frames, message.size)

    def connection(self, route: bytes) -> Connection | None:
        """The inbound connection that libzmq calls `route`, once its hello has come."""
        return self._routes.get(route)

    def route_on(self, descriptor: int) -> bytes:
        """The route of the link's connection that has this descriptor, or b""."""
        found = (x.route for x in self._routes.values() if x.descriptor == descriptor and x.link is not None)
        return next(found, b"")

    def refused(self, origin: str, code: str, reason: str) -> None:
        self._context.counters.handshakes[code] += 1
        if self._refusals < REFUSALS_A_TURN:
            self._refusals += 1
            self._turn.tell(HandshakeRefused(origin, code, reason))

    # -- the hello -----------------------------------------------------------------------------------------------

    def _on_first_message(self, first: Arrived, origin: str, descriptor: int) -> None:
        try:
            message = signed_hello.unpack(first.frames)
        except RemoteProtocolError:
            message = None
        if isinstance(message, signed_hello.Redeem) and len(first.user) == 64:
            self._on_invite(message, first, origin)
            return
        fits = isinstance(message, signed_hello.Hello) and first.lane in (None, message.lane)
        if not isinstance(message, signed_hello.Hello) or not fits or len(first.user) != 64:
            self._context.drop("unverified")
            if message is None:  # the other side may still take a closed link for open
                first.wire.answer(first.route, pack(signed_hello.Bye("no hello")))
            return
        if self._own(message.nonce):  # the dialling side reports it
            first.wire.answer(first.route, pack(signed_hello.Refuse("GD-101", LEADS_BACK)))
            return
        hello = ListenerHello(self._context.me, bytes.fromhex(first.user), first.expected)
        try:
            if self._links.linked(message.id) is None and not self._links.room(origin):
                raise UnreachableError("GD-101", f"all {self._limits.links} links are taken")
            reply = hello.hello(message, origin)
            if self._links.shunned(message.id):
                raise UnreachableError("GD-101", "it sent more than this peer could read, and has to wait")
        except GossipdpError as error:
            if error.code == "GD-208" and hello.generation > self._context.me.secret.generation:
                # It is this peer that lacks the newest secret. The dialler comes again with the one before.
                first.wire.answer(first.route, pack(signed_hello.Refuse(error.code, error.cause[:160])))
            else:
                self._refuse(first.wire, first.route, origin, error)
            return
        if len(self._pending) >= self._limits.hellos:
            self._forget(next(iter(self._pending.values())), "timeout")
        connection = Connection(
            Lane(message.lane),
            hello,
            first.wire,
            route=first.route,
            user=first.user,
            origin=origin,
            descriptor=descriptor,
            via=first.relay,
            deadline=self._turn.now + self._limits.hello,
        )
        self._routes[first.route] = self._pending[first.route] = connection
        self._queues.write(connection, reply)

    def _on_proof(self, connection: Connection, frames: list[Buffer]) -> None:
        hello = connection.hello
        assert isinstance(hello, ListenerHello)
        claims, me = hello.claims, self._context.me.identity.id
        try:
            message = signed_hello.unpack(frames)
            if not isinstance(message, signed_hello.Proof) or hello.proven:
                raise RemoteProtocolError("not a proof")
            hello.proof(message)
            if claims.id == me:
                self._turn.tell(CopyMet(connection.origin, claims.incarnation, claims.start))
            signed_hello.check_other(me, claims.id)
            signed_hello.check_alone(claims.id, self._links.live(claims.id), claims.incarnation, claims.start)
        except RemoteProtocolError:
            self._context.drop("unverified")
            self._forget(connection, "broken")
            return
        except GossipdpError as error:
            self._refuse(connection.wire, connection.route, connection.origin, error)
            self._forget(connection, "")
            return
        self._links.learn_run(claims.run, claims.id)
        both = {
            other.lane: other
            for other in self._pending.values()
            if isinstance(other.hello, ListenerHello)
            and other.hello.proven
            and other.hello.claims.id == claims.id
            and other.hello.claims.nonce == claims.nonce
            and other.via == connection.via
        }
        if len(both) == len(Lane):
            self._welcome(both, connection, hello)

    def _welcome(self, both: dict[Lane, Connection], last: Connection, hello: ListenerHello) -> None:
        """Both connections of a link are verified, this one last."""
        claims = hello.claims
        link = Link(last.origin, last.origin, inbound=True, now=self._turn.now, via=last.via, connections=both)
        link.verify(claims.id, claims.incarnation, claims.start, hello.said_run, hello.generation)
        for connection in both.values():
            connection.join(link)
            connection.wire.prove(connection)
            del self._pending[connection.route]
            self._queues.write(connection, pack(signed_hello.Welcome()))
        self._links.bring_up(link)

    # -- invites -------------------------------------------------------------------------------------------------

    def _on_invite(self, shown: signed_hello.Redeem, first: Arrived, origin: str) -> None:
        """A host shows an invite. Whether it may come in is for the protocol to say."""
        if self._invites >= INVITES_A_TURN:
            self._context.drop("unverified")
            return
        self._invites += 1
        decision, me = shown.decision, self._context.me
        receipt = Receipt(decision.subject, decision.number, shown.id, shown.proof)
        try:
            if shown.network != me.network:
                raise MismatchError("GD-203", f"network {shown.network!r} there, {me.network!r} here")
            if curve_public_key(shown.id) != bytes.fromhex(first.user):
                raise RefusedError("GD-202", f"identity {short(shown.id)} does not match the key of the connection")
            if decision.invite is None or decision.invite.generation != me.secret.generation:
                raise RefusedError("GD-208", "the invite is for another network secret than this peer's")
        except GossipdpError as error:
            self._refuse(first.wire, first.route, origin, error)
            return
        self._turn.tell(InviteShown(origin, first.route, decision, receipt))

    def answer_invite(self, shown: InviteShown, why_not: str) -> None:
        """Send the network's secret, or why the host may not come in."""
        secret = self._context.me.secret
        if why_not:
            self._refuse(self._context.wire, shown.route, shown.address, RefusedError("GD-209", why_not))
        else:
            granted = signed_hello.Granted(secret.reveal(), secret.generation, secret.reveal_generation())
            self._context.wire.answer(shown.route, pack(granted))

    def _refuse(self, wire: Wire, route: bytes, origin: str, error: GossipdpError) -> None:
        self.refused(origin, error.code, error.cause)
        wire.answer(route, pack(signed_hello.Refuse(error.code, error.cause[:160])))

    def _forget(self, connection: Connection, result: str) -> None:
        """The hello of `connection` failed. `result` is the label of the count, or ""."""
        self._pending.pop(connection.route, None)
        self._routes.pop(connection.route, None)
        self._queues.forget(connection)
        if connection.via:
            connection.wire.dismiss(connection)
        if result:
            self._context.counters.handshakes[result] += 1

    # -- connections that are gone -------------------------------------------------------------------------------

    def descriptor_closed(self, descriptor: int) -> None:
        """An inbound connection is gone. The kernel reuses its number at once, so every route with it is probed."""
        meant = [connection for connection in self._routes.values() if connection.descriptor == descriptor]
        self._suspects += [(self._turn.now + delay, connection) for delay in PROBE_AFTER for connection in meant]

    def closed(self, route: bytes) -> None:
        """The relayed connection of this route is closed."""
        if (connection := self._pending.get(route)) is not None:
            self._forget(connection, "broken")

    def gone(self, connection: Connection) -> None:
        """libzmq has no such connection any more."""
        if connection.route in self._pending:
            self._forget(connection, "broken")

    def unroute(self, connection: Connection) -> None:
        """The link of `connection` is closed: later messages on it are unverified."""
        self._routes.pop(connection.route, None)

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self._pending and not self._suspects:
            return math.inf
        due = min((connection.deadline for connection in self._pending.values()), default=math.inf)
        return min(due, min((when for when, _ in self._suspects), default=math.inf))

    def probe(self) -> None:
        """Probe the suspects that are due. A connection is gone if libzmq does not take a probe for it."""
        self._refusals = self._invites = 0
        if not self._suspects:
            return
        waiting = []
        for when, connection in self._suspects:
            if self._routes.get(connection.route) is not connection:
                continue
            if when > self._turn.now:
                waiting.append((when, connection))
            else:
                self._queues.probe(connection)
        self._suspects = waiting

    def run_timers(self) -> None:
        for connection in list(self._pending.values()):
            if self._turn.now >= connection.deadline:
                self._forget(connection, "timeout")
