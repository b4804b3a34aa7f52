"""The links of one peer: which are dialled, verified, up, given up, full, unused. No socket may stand here.

`Transport` owns the sockets; what happens on them comes in through `opened`, `answered`, `arrived`, `failed`, `ended`
and `descriptor_closed`, and what is to be done on them goes out through a `Wire`. Two connections, one a lane, are a
link. A dial tries every IP address of its name in turn, and needs a signed hello on both connections (see `handshake`).
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.errors import (
    ConfigError,
    GossipdpError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    UnreachableError,
)
from gossipdp.protocol.messages import MAX_FRAMES, Lane, short
from gossipdp.protocol.wire import Buffer
from gossipdp.runtime import handshake
from gossipdp.runtime.connections import Connection, Dial, Link, Wire
from gossipdp.runtime.handshake import DiallerHello, ListenerHello, Self, pack
from gossipdp.runtime.identity import split_address
from gossipdp.runtime.resolver import Resolver, Target
from gossipdp.runtime.transport_events import (
    DialFailed,
    HandshakeRefused,
    LinkDown,
    LinkStatus,
    LinkUp,
    Received,
    RunLearned,
    TransportCounters,
    TransportEvent,
    TransportLimits,
)

REFUSALS_A_TURN: Final = 8
_RETRY: Final = 0.005
"""seconds between tries to empty a queue: POLLOUT of a ROUTER is true even for a full peer"""
_PROBES: Final = (0.0, 0.02, 0.1, 0.5, 1.5)
"""seconds after a disconnect when the routes that it may have meant are probed; libzmq drops a route a little later"""


class Peering:
    """All links of one peer, without their sockets. See `Transport` for the arguments."""

    def __init__(self, me: Self, wire: Wire, limits: TransportLimits, counters: TransportCounters, now: float) -> None:
        self.now = now
        self.counters = counters
        self.events: list[TransportEvent] = []
        self._me = me
        self._wire = wire
        self._limits = limits
        self._links: dict[bytes, Link] = {}
        self._retired: list[Link] = []
        self._dials: dict[str, Dial] = {}
        self._failed: dict[str, float] = {}
        self._routes: dict[bytes, Connection] = {}
        self._pending: dict[bytes, Connection] = {}
        self._queued: dict[Connection, None] = {}
        self._dead: list[Connection] = []
        self._suspects: list[tuple[float, Connection]] = []
        self._refusals = 0
        self._resolver = Resolver()
        self._swept = now

    @property
    def run(self) -> bytes:
        return self._me.run

    @run.setter
    def run(self, run: bytes) -> None:
        if len(run) != 16 or self._me.run not in (b"", run):
            raise LocalProtocolError("a run has 16 bytes and is set once")
        self._me.run = run
        for link in self._all_links():
            self._tell_run(link)

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer]) -> bool:
        size = sum(memoryview(frame).nbytes for frame in frames)
        link = self._links.get(to) if to else self._linked_at(address)
        if link is not None:
            link.used = self.now
            return self._write(link.connections[lane], frames, size)
        if not address:
            return self._drop("unroutable")
        dial = self._dials.get(address) or self._start_dial(address, to)
        if dial is None:
            return False
        if not self._fits(len(dial.queue), dial.queued_bytes, size):
            return self._drop("queue")
        dial.wanted.add(to)
        dial.queue.append((to, lane, frames, size))
        dial.queued_bytes += size
        return True

    def statuses(self) -> list[LinkStatus]:
        return [
            LinkStatus(
                link.peer,
                link.address,
                link.inbound,
                link.incarnation,
                idle=self.now - link.used,
                age=self.now - link.opened,
                queued=sum(len(connection.queue) for connection in link.connections.values()),
            )
            for link in self._links.values()
        ]

    # -- sending -------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, frames: Sequence[Buffer], size: int = 0) -> bool:
        """Send, or queue if the connection is full. `size` 0 marks a service message."""
        try:
            if not connection.queue and self._push(connection, frames, size):
                return True
        except BrokenPipeError:
            self._dead.append(connection)
            return self._drop("link down")
        if not self._fits(len(connection.queue), connection.queued_bytes, size):
            return self._drop("queue")
        connection.queue.append((frames, size))
        connection.queued_bytes += size
        self._queued[connection] = None
        self.counters.full += 1
        return True

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait here for connections to take them."""
        dials = sum(dial.queued_bytes for dial in self._dials.values())
        return dials + sum(connection.queued_bytes for connection in self._queued)

    def _fits(self, messages: int, queued: int, size: int) -> bool:
        limits = self._limits
        if messages >= limits.queue_messages or queued + size > limits.queue_bytes:
            return False
        return self.queued_bytes + size <= limits.total_bytes

    def _push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        if not self._wire.push(connection, frames, size):
            return False
        if size and connection.link is not None:
            self.counters.count_sent(connection.link.peer, connection.lane, size)
        return True

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.queue:
                frames, size = connection.queue[0]
                if not self._push(connection, frames, size):
                    return
                connection.queue.popleft()
                connection.queued_bytes -= size
        except BrokenPipeError:
            self._dead.append(connection)
        self._queued.pop(connection, None)

    def _drop(self, reason: str, count: int = 1) -> bool:
        if count:
            self.counters.drops[reason] += count
        return False

    # -- dialling ------------------------------------------------------------------------------------------------

    def _start_dial(self, address: str, to: bytes) -> Dial | None:
        if self.now < self._failed.get(address, -math.inf) + self._limits.redial:
            self._drop("redial")
            return None
        if len(self._dials) >= self._limits.dials or not self._room():
            self._drop("links")
            return None
        dial = Dial(address)
        dial.wanted.add(to)
        try:
            host, port = split_address(address)
        except ConfigError as error:
            self._failed[address] = self.now
            self.events.append(DialFailed(to, address, f"{address} is not host:port", error.code))
            self._drop("unreachable")
            return None
        self._dials[address] = dial
        found = self._resolver.look_up(address, host, port)
        if found is not None:
            self._resolved(dial, found)
        if address not in self._dials:
            self._drop("unreachable")
            return None
        return dial

    def _resolved(self, dial: Dial, found: list[Target] | str) -> None:
        if isinstance(found, str):
            dial.failures.append(("GD-101", f"{dial.address} {found}"))
        else:
            dial.targets.extend(found)
        self._dial_next(dial)

    def _dial_next(self, dial: Dial) -> None:
        """Try the next address of those the name stands for."""
        while dial.targets:
            target = dial.targets.popleft()
            dial.target = target.text
            if not target.routable:
                dial.failures.append(("GD-101", f"{target.text} no route"))
                continue
            dial.link = link = Link(dial.address, inbound=False, now=self.now)
            link.dial = dial
            dial.nonce = secrets.token_bytes(32)
            dial.deadline = self.now + self._limits.connect + self._limits.handshake
            try:
                for lane in Lane:
                    self._open(link, lane, target.endpoint, dial.nonce)
            except OSError as error:
                self._close_connections(link)
                dial.failures.append(("GD-104", f"{target.text} no socket here: {error.strerror}"))
                continue
            return
        del self._dials[dial.address]
        self._failed[dial.address] = self.now
        code = min((code for code, _ in dial.failures), key=lambda code: code == "GD-101", default="GD-101")
        reason = "; ".join(text for _, text in dial.failures)
        self.events.extend(DialFailed(to, dial.address, reason, code) for to in sorted(dial.wanted))
        self._drop("unreachable", len(dial.queue))

    def _open(self, link: Link, lane: Lane, endpoint: str, nonce: bytes) -> None:
        connection = Connection(lane, DiallerHello(self._me, nonce, lane))
        connection.link = link
        link.connections[lane] = connection
        self._wire.open(connection, endpoint)

    def _target_failed(self, dial: Dial, code: str, reason: str, result: str = "") -> None:
        assert dial.link is not None
        self.counters.handshakes[result or code] += 1
        self._close_connections(dial.link)
        dial.link = None
        dial.failures.append((code, f"{dial.target} {reason}"))
        self._dial_next(dial)

    def opened(self, connection: Connection) -> None:
        """CURVE is done on a dialled connection: the hello is next."""
        if connection.link is not None and (dial := connection.link.dial) is not None:
            assert isinstance(connection.hello, DiallerHello)
            dial.deadline = self.now + self._limits.hello
            self._write(connection, connection.hello.hello())

    def failed(self, connection: Connection, code: str, reason: str, result: str) -> None:
        """A dialled connection was not made. `result` is the word it is counted under."""
        if connection.handle is not None and connection.link is not None and connection.link.dial is not None:
            self._target_failed(connection.link.dial, code, reason, result)

    def ended(self, connection: Connection) -> None:
        """A dialled connection was closed, and what had arrived on it is taken."""
        link = connection.link
        if link is None or connection.handle is None:
            return
        if link.dial is None:
            self._close_link(link, "closed by the other side, or no heartbeat")
        else:
            self._target_failed(link.dial, "GD-101", "closed the connection during the hello", "broken")

    def answered(self, connection: Connection, frames: list[Buffer], size: int) -> None:
        """A message came on a dialled connection."""
        link = connection.link
        assert link is not None
        if link.dial is None:
            self._take(connection, link, frames, size)
        else:
            self._on_answer(connection, link, link.dial, frames)

    def _on_answer(self, connection: Connection, link: Link, dial: Dial, frames: list[Buffer]) -> None:
        hello = connection.hello
        assert isinstance(hello, DiallerHello)
        try:
            message = handshake.unpack(frames)
            if isinstance(message, handshake.Answer) and not connection.proof_sent:
                connection.proof_sent = self._write(connection, hello.answer(message))
                self._learn_run(hello.run, hello.peer)
            elif isinstance(message, handshake.Welcome):
                self._dialled(link, dial)
            elif isinstance(message, handshake.Refuse):
                self._target_failed(dial, message.code, f"said no: {_printable(message.reason)}")
            else:
                raise RemoteProtocolError("not an answer to a hello")
        except GossipdpError as error:
            self._target_failed(dial, error.code, error.cause)
        except RemoteProtocolError as error:
            self._drop("malformed")
            self._target_failed(dial, "GD-101", f"answered out of order: {error}", "broken")

    def _dialled(self, link: Link, dial: Dial) -> None:
        """The listener has verified both connections; so has this side, or the other lies."""
        hellos = [connection.hello for connection in link.connections.values()]
        peers = {hello.peer for hello in hellos if isinstance(hello, DiallerHello)}
        if len(peers) != 1 or b"" in peers:
            raise RemoteProtocolError("welcome before the answer")
        first = hellos[0]
        assert isinstance(first, DiallerHello)
        link.peer, link.incarnation, link.told_run = first.peer, first.incarnation, first.said_run
        link.dial = None
        del self._dials[dial.address]
        self._bring_up(link)
        strangers = dial.wanted - {link.peer, b""}
        reason = f"{dial.target} is another peer now, {short(link.peer)}"
        self.events.extend(DialFailed(to, dial.address, reason, "GD-101") for to in sorted(strangers))
        for to, lane, frames, size in dial.queue:
            if to in strangers:
                self._drop("unreachable")
            else:
                self._write(self._links[link.peer].connections[lane], frames, size)

    def _dial_timed_out(self, dial: Dial) -> None:
        assert dial.link is not None
        if any(connection.proof_sent for connection in dial.link.connections.values()):
            reason = f"no welcome in {self._limits.hello:g} s"
        else:
            reason = f"no answer in {self._limits.connect:g} s"
        self._target_failed(dial, "GD-101", reason, "timeout")

    # -- listening -----------------------------------------------------------------------------------------------

    def arrived(
        self, route: bytes, user: str, frames: list[Buffer], size: int, source: Callable[[], tuple[str, int]]
    ) -> None:
        """A message came on an inbound connection.

        Args:
            route: libzmq's name for the connection.
            user: the CURVE key it was made with, as hexadecimal digits; "" if unknown.
            size: of all frames together, in bytes.
            source: tells the IP address it came from, and the descriptor as `descriptor_closed` will name it.
        """
        connection = self._routes.get(route)
        if not frames:
            self._drop("malformed")
        elif connection is None or connection.user != user:
            self._on_stranger(route, user, frames, *source())
        elif connection.link is None:
            self._on_proof(connection, frames)
        else:
            self._take(connection, connection.link, frames, size)

    def descriptor_closed(self, descriptor: int) -> None:
        """An inbound connection is gone. Its number is used again at once, and routes of the two cannot be told apart:
        each is asked."""
        meant = [connection for connection in self._routes.values() if connection.descriptor == descriptor]
        self._suspects += [(self.now + delay, connection) for delay in _PROBES for connection in meant]

    def _on_stranger(self, route: bytes, user: str, frames: list[Buffer], origin: str, descriptor: int) -> None:
        """A first message: a hello, or nothing that counts."""
        try:
            message = handshake.unpack(frames)
        except RemoteProtocolError:
            message = None
        if not isinstance(message, handshake.Hello) or len(user) != 64:
            self._drop("unverified")
            if message is None:  # perhaps on a link that only the other side still believes in
                self._wire.answer(route, pack(handshake.Bye("no hello")))
            return
        hello = ListenerHello(self._me, bytes.fromhex(user))
        try:
            if any(dial.nonce == message.nonce for dial in self._dials.values()):
                raise UnreachableError("GD-101", "this address leads back to the dialler itself")
            linked = self._links.get(message.id)
            if linked is None and not self._room():
                raise UnreachableError("GD-101", f"all {self._limits.links} links are taken")
            reply = hello.hello(message)
        except GossipdpError as error:
            self._refuse(route, origin, error)
            return
        if len(self._pending) >= self._limits.hellos:
            self._forget(next(iter(self._pending.values())), "timeout")
        connection = Connection(Lane(message.lane), hello)
        connection.route, connection.user, connection.origin = route, user, origin
        connection.descriptor = descriptor
        connection.deadline = self.now + self._limits.hello
        self._routes[route] = self._pending[route] = connection
        self._write(connection, reply)

    def _on_proof(self, connection: Connection, frames: list[Buffer]) -> None:
        hello = connection.hello
        assert isinstance(hello, ListenerHello)
        claims = hello.claims
        try:
            message = handshake.unpack(frames)
            if not isinstance(message, handshake.Proof) or hello.proven:
                raise RemoteProtocolError("not a proof")
            hello.proof(message)
            linked = self._links.get(claims.id)
            if linked is not None and linked.incarnation > claims.incarnation:
                raise RefusedError("GD-205", f"{short(claims.id)} is live here with a later start: was a home copied?")
        except RemoteProtocolError:
            self._drop("unverified")
            self._forget(connection, "broken")
            return
        except GossipdpError as error:
            self._forget(connection, "")
            self._refuse(connection.route, connection.origin, error)
            return
        self._learn_run(claims.run, claims.id)
        mates = {
            other.lane: other
            for other in self._pending.values()
            if isinstance(other.hello, ListenerHello)
            and other.hello.proven
            and other.hello.claims.id == claims.id
            and other.hello.claims.nonce == claims.nonce
        }
        if len(mates) == len(Lane):
            link = Link(connection.origin, inbound=True, now=self.now)
            link.peer, link.incarnation, link.told_run = claims.id, claims.incarnation, hello.said_run
            link.connections = mates
            for mate in mates.values():
                mate.link, mate.deadline = link, math.inf
                del self._pending[mate.route]
                self._write(mate, pack(handshake.Welcome()))
            self._bring_up(link)

    def refused(self, origin: str, code: str, reason: str) -> None:
        self.counters.handshakes[code] += 1
        if self._refusals < REFUSALS_A_TURN:
            self._refusals += 1
            self.events.append(HandshakeRefused(origin, code, reason))

    def _refuse(self, route: bytes, origin: str, error: GossipdpError) -> None:
        self.refused(origin, error.code, error.cause)
        self._wire.answer(route, pack(handshake.Refuse(error.code, error.cause[:160])))

    def _forget(self, connection: Connection, result: str) -> None:
        self._pending.pop(connection.route, None)
        self._routes.pop(connection.route, None)
        self._queued.pop(connection, None)
        if result:
            self.counters.handshakes[result] += 1

    # -- links ---------------------------------------------------------------------------------------------------

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *self._retired]

    def _linked_at(self, address: str) -> Link | None:
        return next((x for x in self._links.values() if not x.inbound and x.address == address), None)

    def _room(self) -> bool:
        """Is there room for one more link, if need be that of the one longest unused?"""
        if len(self._links) < self._limits.links:
            return True
        oldest = min(self._links.values(), key=lambda link: link.used)
        if self.now - oldest.used < min(5.0, self._limits.idle):
            return False
        self._close_link(oldest, "made room for another link")
        return True

    def _bring_up(self, link: Link) -> None:
        self.counters.handshakes["ok"] += 1
        me, peer = self._me.identity.id, link.peer
        self._failed.pop(link.address, None)
        old = self._links.get(peer)
        if old is None or link.rank(me) >= old.rank(me):
            self._links[peer] = link
            restarted = old is not None and old.incarnation != link.incarnation
            if restarted:
                self.events.append(LinkDown(peer, "the peer was started again"))
            if old is None or restarted:
                self.events.append(LinkUp(peer, link.address, link.inbound, link.incarnation))
            if old is not None:
                self._retire(old, link)
        else:
            self._retire(link, old)
        self._tell_run(link)
        for dial in list(self._dials.values()):
            self._take_over(dial, self._links[peer])

    def _retire(self, link: Link, better: Link) -> None:
        """Send on `better` from now on, and read `link` for a while: the other side may still have used it."""
        link.retired = self.now + self._limits.drain
        self._retired.append(link)
        for lane, connection in link.connections.items():
            for frames, size in connection.queue:
                self._write(better.connections[lane], frames, size)
            connection.queue.clear()
            connection.queued_bytes = 0
            self._queued.pop(connection, None)

    def _take_over(self, dial: Dial, link: Link) -> None:
        """`link` came up while `dial` was under way: what waits there for the same peer need not wait."""
        if link.peer not in dial.wanted:
            return
        waiting, dial.queue, dial.queued_bytes = dial.queue, deque(), 0
        for to, lane, frames, size in waiting:
            if to == link.peer:
                self._write(link.connections[lane], frames, size)
            else:
                dial.queue.append((to, lane, frames, size))
                dial.queued_bytes += size
        proven = dial.link is not None and any(x.proof_sent for x in dial.link.connections.values())
        if dial.wanted == {link.peer} and self._me.identity.id > link.peer and not proven:
            del self._dials[dial.address]  # the lower id's dial stays; one that may be up over there is let finish
            if dial.link is not None:
                self._close_connections(dial.link)

    def _take(self, connection: Connection, link: Link, frames: list[Buffer], size: int) -> None:
        """A message on a verified connection."""
        if handshake.is_service(frames[0]):
            self._on_service(link, frames)
            return
        if len(frames) > MAX_FRAMES:
            self._drop("malformed")
            return
        link.used = self.now
        self.counters.count_received(link.peer, connection.lane, size)
        self.events.append(Received(link.peer, connection.lane, frames))

    def _on_service(self, link: Link, frames: list[Buffer]) -> None:
        try:
            message = handshake.unpack(frames)
            if isinstance(message, handshake.Learned):
                handshake.check_run(self._me.run, message.run)
                self._learn_run(message.run, link.peer)
            elif isinstance(message, handshake.Bye):
                self._close_link(link, _printable(message.reason))
            elif not isinstance(message, handshake.Welcome | handshake.Probe):
                raise RemoteProtocolError("a hello on a link that is up")
        except RemoteProtocolError:
            self._drop("malformed")
        except GossipdpError as error:
            self.refused(link.address, error.code, error.cause)
            self._close_link(link, error.cause)

    def _learn_run(self, run: bytes, peer: bytes) -> None:
        if run and not self._me.run:
            self.run = run
            self.events.append(RunLearned(run, peer))

    def _tell_run(self, link: Link) -> None:
        if link.told_run != self._me.run:
            link.told_run = self._me.run
            self._write(link.connections[Lane.CONTROL], pack(handshake.Learned(self._me.run)))

    def _close_link(self, link: Link, reason: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.events.append(LinkDown(link.peer, reason))
        elif link in self._retired:
            self._retired.remove(link)
        if link.inbound:
            for connection in link.connections.values():
                self._wire.answer(connection.route, pack(handshake.Bye(reason[:160])))
        self._close_connections(link, linger=1.0)

    def _close_connections(self, link: Link, linger: float = 0.0) -> None:
        for connection in link.connections.values():
            self._drop("link down", sum(size > 0 for _, size in connection.queue))
            connection.queue.clear()
            self._queued.pop(connection, None)
            self._routes.pop(connection.route, None)
            if connection.handle is not None:
                self._wire.shut(connection, linger)
                connection.handle = None

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if self._dead:
            return self.now
        due = self._swept + min(1.0, self._limits.idle / 4)
        if self._queued:
            due = min(due, self.now + _RETRY)
        if self._resolver.pending:
            due = min(due, self.now + 0.02)
        if self._dials:
            due = min(due, *(dial.deadline for dial in self._dials.values()))
        if self._pending:
            due = min(due, *(connection.deadline for connection in self._pending.values()))
        if self._suspects:
            due = min(due, *(when for when, _ in self._suspects))
        if self._retired:
            due = min(due, *(link.retired for link in self._retired))
        return due

    def run_timers(self) -> None:
        self._refusals = 0
        for address, found in self._resolver.collect():
            if (dial := self._dials.get(address)) and dial.link is None:
                self._resolved(dial, found)
        for connection in list(self._queued):
            self._flush(connection)
        self._probe_suspects()
        dead, self._dead = self._dead, []
        for connection in dead:
            if connection.link is not None and self._is_open(connection.link):
                self._close_link(connection.link, "closed by the other side")
            elif connection.route in self._pending:
                self._forget(connection, "broken")
        for dial in list(self._dials.values()):
            if self.now >= dial.deadline and dial.link is not None:
                self._dial_timed_out(dial)
        for connection in list(self._pending.values()):
            if self.now >= connection.deadline:
                self._forget(connection, "timeout")
        for link in list(self._retired):
            if self.now >= link.retired:
                self._close_link(link, "a better link is up")
        if self.now >= self._swept + min(1.0, self._limits.idle / 4):
            self._sweep()

    def _is_open(self, link: Link) -> bool:
        return self._links.get(link.peer) is link or link in self._retired

    def _probe_suspects(self) -> None:
        waiting = []
        for when, connection in self._suspects:
            if self._routes.get(connection.route) is not connection:
                continue
            if when > self.now:
                waiting.append((when, connection))
                continue
            try:
                self._push(connection, pack(handshake.Probe()), 0)
            except BrokenPipeError:
                self._dead.append(connection)
        self._suspects = waiting

    def _sweep(self) -> None:
        """Close links that nobody uses, and ask quiet inbound ones whether they are still there."""
        self._swept = self.now
        for link in list(self._links.values()):
            idle = self.now - link.used
            if idle >= self._limits.idle * (2 if link.inbound else 1):
                self._close_link(link, f"unused for {idle:.0f} s")
            elif link.inbound and idle > 5:
                self._suspects += [(self.now, connection) for connection in link.connections.values()]
        oldest = self.now - self._limits.redial
        self._failed = {address: when for address, when in self._failed.items() if when > oldest}


def _printable(text: str) -> str:
    """What another peer wrote, fit for a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
