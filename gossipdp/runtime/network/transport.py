"""ZeroMQ sockets between peers: dial, admit, verify, send, receive, notice. Only `sockets` imports zmq beside it.

One ROUTER is bound. A neighbour is dialled with two DEALERs, so that a payload on the data lane never stands in front
of a ping on the control lane; both connections together are a link, and a link serves both directions. CURVE is always
on (see `identity`), ZAP admits the keys that are to be, and a signed hello over each connection comes before
anything else (see `handshake`). Dialling again is the protocol's decision: libzmq never reconnects by itself. Which
links there are, and what becomes of them, is kept by `Peering`; here is what only libzmq can do.

A `Transport` and its sockets belong to the one thread that calls it. Nothing here blocks but `poll`, and nothing a
remote does becomes an exception. No message of the protocol is read here.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import zmq

from gossipdp.errors import ConfigError, UnreachableError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.descriptors import shares, spare
from gossipdp.runtime.network.connections import Connection
from gossipdp.runtime.network.events import (
    CopyMet,
    Crowded,
    Dialable,
    DialFailed,
    Flooded,
    HandshakeRefused,
    LinkDown,
    LinkStatus,
    LinkUp,
    Received,
    RunLearned,
    TransportCounters,
    TransportEvent,
    TransportLimits,
    told,
)
from gossipdp.runtime.network.handshake import Self
from gossipdp.runtime.network.identity import Identity, NetworkSecret, draw_start, known_curve_keys
from gossipdp.runtime.network.inbox import Inbox
from gossipdp.runtime.network.links import Peering
from gossipdp.runtime.network.sockets import (
    Severing,
    Socket,
    Sockets,
    await_words,
    buffers,
    dial_failure,
    identify,
    monitor_events,
    plain_ip,
    receive,
    received,
)
from gossipdp.runtime.network.sockets import source as source_of
from gossipdp.runtime.network.sockets import user as user_of
from gossipdp.runtime.network.unproven import Strangers

__all__ = [
    "CopyMet",
    "Crowded",
    "DialFailed",
    "Dialable",
    "Flooded",
    "HandshakeRefused",
    "LinkDown",
    "LinkStatus",
    "LinkUp",
    "Received",
    "RunLearned",
    "Transport",
    "TransportCounters",
    "TransportEvent",
    "TransportLimits",
    "told",
]

TURN_BYTES: Final = 1 << 19
"""a turn takes messages up to so many bytes: payloads that pile up before they are used leave the caches"""
READ: Final = 4096
"""messages read from one socket in one turn, at the most"""
GRACE: Final = 0.5
"""seconds in which the other side may close a connection whose link is over"""
TELL_AGAIN: Final = 60.0
"""seconds between two events that say that strangers are many"""
MAX_CUT: Final = 1024
"""routes remembered of connections that were closed for sending too much"""
COPY_BYTES: Final = 64 << 10
"""libzmq takes sent messages past this size without a copy"""
_LISTENER_EVENTS: Final = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_DIALLER_EVENTS: Final = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Transport:
    """All links of one peer.

    Args:
        identity, secret: who this peer is, and what lets it in.
        network: the network's name.
        run: 16 bytes, or b"" while unknown; see `run`.
        incarnation: of this start (`identity.next_incarnation`).
        listen: ``tcp://*:4710`` or the like, port 0 for a free one; None for a peer that only dials out.
        allowed: ids of the only peers to have links with; none: anybody who knows the secret.
        banned: ids of peers to have no link with.
        limits: see `TransportLimits`.

    Raises:
        UnreachableError: GD-104, the port is busy; that may pass.
        ConfigError: `listen` is no address of this host.
    """

    def __init__(
        self,
        identity: Identity,
        secret: NetworkSecret,
        *,
        network: str,
        run: bytes,
        incarnation: int,
        listen: str | None,
        allowed: frozenset[bytes] = frozenset(),
        banned: frozenset[bytes] = frozenset(),
        limits: TransportLimits | None = None,
    ) -> None:
        self.counters = TransportCounters()
        self.port = 0
        self.address_bound = ""
        self._limits = limits or TransportLimits()
        self.identity = identity
        allowed = allowed and allowed | {identity.id}
        self._allowed, self._banned = known_curve_keys(tuple(allowed)), known_curve_keys(tuple(banned))
        files = shares()
        limits = replace(self._limits, links=min(self._limits.links, files.links))
        self.scarce = ""
        """what is to be told if there are fewer links for want of descriptors"""
        if limits.links < self._limits.links:
            self.scarce = f"{files.limit} open files are enough for {limits.links} links of {self._limits.links}"
        self.start = draw_start(time.time())
        me = Self(identity, network, run, incarnation, self.start, allowed, banned)
        self.admits = me.admits
        """is a link with this member wanted, by the operator's lists?"""
        self._peering = Peering(me, self, limits, self.counters, time.monotonic())
        patience = limits.handshake + limits.hello + 0.5
        self._strangers = Strangers(files.strangers, patience, lambda stranger: received(stranger.descriptor))
        self._crowd_told = -math.inf
        self._severing = Severing()
        self._broken: tuple[int, int] | None = None
        self._watched: Collection[int] = ()
        self._callbacks: dict[Socket, Callable[[], None]] = {}
        self._router: Socket | None = None
        self._inbox: Inbox[bytes | Connection, list[zmq.Frame]] = Inbox(
            limits.queue_messages, limits.queue_bytes, limits.total_bytes
        )
        self._cut: dict[bytes, None] = {}
        """routes of connections that sent too much: what libzmq still has of them is not kept"""
        self._sockets = Sockets(limits, secret.curve_server_keys(), identity.curve)
        self._poller = zmq.Poller()
        if listen is not None:
            try:
                self._listen(listen)
            except BaseException:
                self._sockets.context.destroy(linger=0)
                self._severing.close()
                raise

    # -- the public face -----------------------------------------------------------------------------------------

    @property
    def run(self) -> bytes:
        """The network's run. Set it once, when this peer founds one; a peer without one takes that of the first
        verified peer that has one, tells of it by `RunLearned`, and both ways its runless neighbours hear it."""
        return self._peering.run

    @run.setter
    def run(self, run: bytes) -> None:
        self._peering.run = run

    def advertise(self, address: str) -> None:
        """Others are told to dial `address`: find out whether they can, and tell it by `Dialable` if they cannot.

        Known without asking as soon as somebody has dialled in; else members are asked to dial back.
        """
        self._peering.advertise(address)

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer]) -> bool:
        """Send `frames` to the peer `to`, dialling `address` if no link is up; never blocks.

        Args:
            to: peer id, or b"" if only the address is known.
            address: ``host:port``, or "" for a peer that can only dial out.
            frames: contiguous; they belong to the transport from now on and must not be written to again.

        Returns:
            False if the message was dropped, which `counters.drops` has the reason of. True promises no arrival.
        """
        return self._peering.send(to, address, lane, frames)

    def poll(self, timeout: float, readable: Collection[int] = ()) -> tuple[list[TransportEvent], set[int]]:
        """One turn: wait at most `timeout` seconds for the network or for one of the descriptors `readable`.

        Returns:
            What happened, and which of `readable` can be read.
        """
        self._watch(readable)
        peering = self._peering
        peering.now = time.monotonic()
        due = min(peering.next_timer(), self._strangers.next_timer())
        wait = 0.0 if peering.events or self._inbox else max(0.0, min(timeout, due - peering.now))
        ready: set[int] = set()
        polled: list[tuple[Any, int]] = self._poller.poll(math.ceil(wait * 1000))
        peering.now = time.monotonic()
        for source, _ in polled:
            if isinstance(source, int):
                ready.add(source)
            elif callback := self._callbacks.get(source):  # an earlier callback may have closed this socket
                callback()
        self._deliver()
        self._part()
        peering.run_timers()
        events, peering.events = peering.events, []
        return events, ready

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for connections to take them."""
        return self._peering.queued_bytes

    def links(self) -> list[LinkStatus]:
        return self._peering.statuses()

    def close(self, linger: float = 0.5) -> None:
        """Close everything; what has been handed to libzmq still has `linger` seconds to leave."""
        for watched in self._callbacks:
            watched.disable_monitor()  # see `shut`
        self._callbacks.clear()
        self._sockets.context.destroy(linger=int(linger * 1000))
        self._severing.close()

    # -- the wire of `Peering` -----------------------------------------------------------------------------------

    def open(self, connection: Connection, endpoint: str) -> None:
        try:
            with spare():
                dealer = self._sockets.dealer()
                connection.handle = (dealer, None)
                monitor = self._sockets.monitor(dealer, _DIALLER_EVENTS | _HANDSHAKE_FAILURES)
                connection.handle = (dealer, monitor)
            self._attach(monitor, lambda: self._on_dialler_monitor(connection, monitor))
            self._attach(dealer, lambda: self._on_dealer(connection))
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None

    def push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        if connection.handle is not None:
            out, parts = connection.handle[0], frames
        else:
            out, parts = self._router, [connection.route, *frames]
        try:
            out.send_multipart(parts, zmq.NOBLOCK, copy=size < COPY_BYTES)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise BrokenPipeError(error.errno, error.strerror) from None
        return True

    def answer(self, route: bytes, frames: Sequence[Buffer]) -> None:
        assert self._router is not None
        try:
            self._router.send_multipart([route, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            pass

    def prove(self, connection: Connection) -> None:
        self._strangers.proven(connection.descriptor, connection.route)

    def dismiss(self, connection: Connection) -> None:
        self._strangers.dismissed(connection.descriptor, connection.route, time.monotonic(), GRACE)

    def shut(self, connection: Connection, linger: float) -> None:
        dealer, monitor = connection.handle
        # Events are sent by libzmq's I/O thread: a PAIR without its reader blocks it for ever, and with it all links.
        dealer.disable_monitor()
        if monitor is not None:
            self._detach(monitor)
        self._detach(dealer, linger)
        self._inbox.drop(connection)

    # -- sockets -------------------------------------------------------------------------------------------------

    def _listen(self, listen: str) -> None:
        admission = self._sockets.admission()
        self._attach(admission, lambda: self._admit(admission))
        self._router = router = self._sockets.router()
        monitor = self._sockets.monitor(router, _LISTENER_EVENTS | _HANDSHAKE_FAILURES)
        self._attach(monitor, lambda: self._on_listener_monitor(monitor))
        try:
            router.bind(listen)
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnreachableError(
                    "GD-104",
                    "the port is busy",
                    seen=listen,
                    do="stop what listens there, or take another: --listen tcp://*:PORT, or [network] listen",
                ) from None
            raise ConfigError("usage", f"cannot listen there: {error.strerror}", seen=listen) from None
        self.address_bound = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address_bound.rpartition(":")[2])
        self._attach(router, self._on_router)

    def _attach(self, source: Socket, callback: Callable[[], None]) -> None:
        self._callbacks[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def _detach(self, source: Socket, linger: float = 0) -> None:
        if self._callbacks.pop(source, None) is not None:
            self._poller.unregister(source)
        source.close(int(linger * 1000))

    def _watch(self, readable: Collection[int]) -> None:
        if readable != self._watched:
            for descriptor in set(self._watched) - set(readable):
                self._poller.unregister(descriptor)
            for descriptor in set(readable) - set(self._watched):
                self._poller.register(descriptor, zmq.POLLIN)
            self._watched = tuple(readable)

    # -- what happens on them ------------------------------------------------------------------------------------

    def _on_dialler_monitor(self, connection: Connection, monitor: Socket) -> None:
        for event, value in monitor_events(monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._peering.opened(connection)
            elif event == zmq.EVENT_DISCONNECTED:
                self._on_dealer(connection)  # what arrived before the end still counts
                for frames, size in self._inbox.drop(connection):
                    if connection.handle is not None:
                        self._peering.answered(connection, buffers(frames), size)
                self._peering.ended(connection)
            else:
                self._peering.failed(connection, *dial_failure(event, value, self._limits.handshake))

    def _on_dealer(self, connection: Connection) -> None:
        """Read what arrived on a dialled connection."""
        for _ in range(READ):
            if connection.handle is None or not (frames := receive(connection.handle[0])):
                return
            self._keep(connection, frames, sum(map(len, frames)))

    def _on_router(self) -> None:
        """Read what arrived on inbound connections."""
        assert self._router is not None
        for _ in range(READ):
            if not (message := receive(self._router)):
                return
            if (route := message[0].bytes) not in self._cut:
                self._keep(route, message, sum(map(len, message)) - len(route))

    def _keep(self, key: bytes | Connection, message: list[zmq.Frame], size: int) -> None:
        """Queue a message for `_deliver`. A connection that is past the bounds is closed with all that it sent."""
        if (over := self._inbox.add(key, message, size)) is None:
            return
        unread = len(self._inbox.drop(over))
        if isinstance(over, bytes):
            self._cut[over] = None
            if len(self._cut) > MAX_CUT:
                del self._cut[next(iter(self._cut))]
        self._peering.flooded(over, unread)

    def _deliver(self) -> None:
        """Take from the inbox what one turn has time for."""
        for key, message, size in self._inbox.take(self._limits.turn, TURN_BYTES):
            if isinstance(key, Connection):
                self._peering.answered(key, buffers(message), size)
            else:
                route, *frames = message
                self._peering.arrived(key, user_of(route), buffers(frames), size, partial(source_of, route))

    def _admit(self, admission: Socket) -> None:
        """ZAP (ZeroMQ RFC 27): admit the CURVE keys of those allowed and not banned, and name the connection by it."""
        while True:
            try:
                request = admission.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            _, sequence, _, address, _, mechanism, *credentials = request
            key = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
            admitted = bool(key) and key not in self._banned and (not self._allowed or key in self._allowed)
            status = (b"200", b"OK", key.hex().encode()) if admitted else (b"400", b"refused", b"")
            admission.send_multipart([b"1.0", sequence, *status, b""], zmq.NOBLOCK)
            if not admitted:
                origin = plain_ip(address.decode("ascii", "replace"))
                reason = "a key dialled in that is banned here, or not among those allowed"
                self._peering.refused(origin, "GD-204", reason)

    def _on_listener_monitor(self, monitor: Socket) -> None:
        for event, value in monitor_events(monitor):
            if event == zmq.EVENT_LISTENING:
                await_words(value)
            elif event == zmq.EVENT_ACCEPTED:
                origin, cookie = identify(value)
                self._strangers.accepted(value, cookie, origin, self._peering.now)
            elif event != zmq.EVENT_DISCONNECTED:
                self._broken = (event, value)  # its descriptor follows: the one I/O thread says both in a row
            else:
                origin = self._strangers.closed(value)
                if self._broken is not None:
                    self._handshake_broken(origin, *self._broken)
                    self._broken = None
                self._peering.descriptor_closed(value)

    def _part(self) -> None:
        """Close inbound connections that are too many, or took too long to prove a member."""
        crowd = self._strangers.crowd()
        for stranger in crowd + self._strangers.late(self._peering.now):
            if route := self._peering.route_on(stranger.descriptor):  # the event that it was accepted came late
                self._strangers.readmitted(stranger, route)
            else:
                self._severing.hang_up(stranger.descriptor, stranger.cookie)
        if crowd:
            self.counters.handshakes["crowded"] += len(crowd)
            if self._peering.now >= self._crowd_told + TELL_AGAIN:
                self._crowd_told = self._peering.now
                self._peering.events.append(Crowded(crowd[0].origin, self._strangers.most))

    def _handshake_broken(self, origin: str, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            self._peering.refused(origin, "GD-201", "somebody dialled in with another network secret")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.counters.handshakes["mechanism"] += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.counters.handshakes["timeout" if value == errno.EAGAIN else "broken"] += 1
