"""ZeroMQ sockets between peers: dial, admit, verify, send, receive, notice. The only file that imports zmq.

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
import resource
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from gossipdp.errors import ConfigError, UnreachableError
from gossipdp.protocol.messages import MAX_BUFFER, Lane
from gossipdp.protocol.wire import Buffer
from gossipdp.runtime.connections import Connection
from gossipdp.runtime.handshake import Self
from gossipdp.runtime.identity import Identity, NetworkSecret, draw_start, known_curve_keys
from gossipdp.runtime.peering import Peering
from gossipdp.runtime.transport_events import (
    CopyMet,
    Dialable,
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

__all__ = [
    "CopyMet",
    "DialFailed",
    "Dialable",
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
]

HIGH_WATER: Final = 64
"""messages in each libzmq pipe; the protocol's credit stays below"""
VIEW_BYTES: Final = 4096
"""received frames up to this size become bytes, larger ones stay where libzmq put them"""
TURN_BYTES: Final = 1 << 19
"""a turn stops reading one socket after so much: payloads that pile up before they are used leave the caches"""
COPY_BYTES: Final = 64 << 10
"""libzmq takes sent messages past this size without a copy"""
_LISTENER_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_DIALLER_EVENTS: Final = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_READABLE: Final = int(zmq.POLLIN)
_Socket = zmq.Socket[bytes]


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
        self._server = secret.curve_server_keys()
        allowed = allowed and allowed | {identity.id}
        self._allowed, self._banned = known_curve_keys(tuple(allowed)), known_curve_keys(tuple(banned))
        # A dialled link holds 8 descriptors: a connection and three mailboxes (socket, both monitor ends) a lane.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limits = replace(self._limits, links=max(4, min(self._limits.links, (descriptors - 256) // 8)))
        self.scarce = ""
        """what is to be told if there are fewer links for want of descriptors"""
        if limits.links < self._limits.links:
            self.scarce = f"{descriptors} open files are enough for {limits.links} links of {self._limits.links}"
        self.start = draw_start(time.time())
        me = Self(identity, network, run, incarnation, self.start, allowed, banned)
        self.admits = me.admits
        """is a link with this member wanted, by the operator's lists?"""
        self._peering = Peering(me, self, limits, self.counters, time.monotonic())
        self._origins: dict[int, str] = {}
        self._broken: tuple[int, int] | None = None
        self._watched: Collection[int] = ()
        self._callbacks: dict[_Socket, Callable[[], None]] = {}
        self._monitors = 0
        self._router: _Socket | None = None
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._poller = zmq.Poller()
        if listen is not None:
            try:
                self._listen(listen)
            except BaseException:
                self._context.destroy(linger=0)
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
        wait = 0.0 if peering.events else max(0.0, min(timeout, peering.next_timer() - peering.now))
        ready: set[int] = set()
        polled: list[tuple[Any, int]] = self._poller.poll(math.ceil(wait * 1000))
        peering.now = time.monotonic()
        for source, _ in polled:
            if isinstance(source, int):
                ready.add(source)
            elif callback := self._callbacks.get(source):  # an earlier callback may have closed this socket
                callback()
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
        self._context.destroy(linger=int(linger * 1000))

    # -- the wire of `Peering` -----------------------------------------------------------------------------------

    def open(self, connection: Connection, endpoint: str) -> None:
        try:
            dealer = self._dealer(connection.lane)
            connection.handle = (dealer, None)
            monitor = self._monitor(dealer, _DIALLER_EVENTS | _HANDSHAKE_FAILURES)
            connection.handle = (dealer, monitor)
            self._attach(monitor, lambda: self._on_dialler_monitor(connection, monitor))
            self._attach(dealer, lambda: self._on_dealer(connection, self._limits.turn))
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

    def shut(self, connection: Connection, linger: float) -> None:
        dealer, monitor = connection.handle
        # Events are sent by libzmq's I/O thread: a PAIR without its reader blocks it for ever, and with it all links.
        dealer.disable_monitor()
        if monitor is not None:
            self._detach(monitor)
        self._detach(dealer, linger)

    # -- sockets -------------------------------------------------------------------------------------------------

    def _listen(self, listen: str) -> None:
        admission = self._context.socket(zmq.REP)
        admission.bind("inproc://zeromq.zap.01")
        self._attach(admission, lambda: self._admit(admission))
        self._router = router = self._new_socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, self._server.secret)
        router.setsockopt(zmq.ZAP_DOMAIN, b"gossipdp")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.BACKLOG, 1024)
        monitor = self._monitor(router, _LISTENER_EVENTS | _HANDSHAKE_FAILURES)
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

    def _new_socket(self, kind: int) -> _Socket:
        made: _Socket = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, MAX_BUFFER + 1024),
            (zmq.HANDSHAKE_IVL, int(self._limits.handshake * 1000)),
            # A heartbeat queues behind the payload of its own connection, so be patient on a slow line. Both ends send
            # them: what one sends into the quieter direction keeps the other from giving up.
            (zmq.HEARTBEAT_IVL, int(1000 * self._limits.heartbeat)),
            (zmq.HEARTBEAT_TIMEOUT, int(10_000 * self._limits.heartbeat)),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 30),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_KEEPALIVE_CNT, 3),
        ):
            made.setsockopt(option, value)
        return made

    def _dealer(self, lane: Lane) -> _Socket:
        dealer = self._new_socket(zmq.DEALER)
        if lane is Lane.CONTROL:
            dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(3000 * self._limits.heartbeat))
        for option, value in (
            (zmq.CURVE_SERVERKEY, self._server.public),
            (zmq.CURVE_PUBLICKEY, self.identity.curve.public),
            (zmq.CURVE_SECRETKEY, self.identity.curve.secret),
            (zmq.RECONNECT_IVL, -1),
            (zmq.IMMEDIATE, 1),
            (zmq.CONNECT_TIMEOUT, int(self._limits.connect * 1000)),
        ):
            dealer.setsockopt(option, value)
        return dealer

    def _monitor(self, watched: _Socket, events: int) -> _Socket:
        self._monitors += 1
        endpoint = f"inproc://monitor-{self._monitors}"
        watched.monitor(endpoint, events)
        monitor: _Socket = self._context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, 0)  # a full monitor would stop libzmq's I/O thread
        monitor.connect(endpoint)
        return monitor

    def _attach(self, source: _Socket, callback: Callable[[], None]) -> None:
        self._callbacks[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def _detach(self, source: _Socket, linger: float = 0) -> None:
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

    def _on_dialler_monitor(self, connection: Connection, monitor: _Socket) -> None:
        for event, value in _monitor_events(monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._peering.opened(connection)
            elif event == zmq.EVENT_DISCONNECTED:
                self._on_dealer(connection, sys.maxsize)  # what arrived before the end still counts
                self._peering.ended(connection)
            else:
                self._peering.failed(connection, *_dial_failure(event, value, self._limits.handshake))

    def _on_dealer(self, connection: Connection, most: int) -> None:
        taken = 0
        for _ in range(most):
            if connection.handle is None or not (frames := _receive(connection.handle[0])):
                return
            size = sum(map(len, frames))
            self._peering.answered(connection, _buffers(frames), size)
            taken += size
            if taken >= TURN_BYTES and most <= self._limits.turn:
                return

    def _on_router(self) -> None:
        assert self._router is not None
        taken = 0
        for _ in range(self._limits.turn):
            if not (message := _receive(self._router)):
                return
            route, *frames = message
            size = sum(map(len, frames))
            user = _property(route, "User-Id")
            self._peering.arrived(route.bytes, user, _buffers(frames), size, partial(_source, route))
            taken += size
            if taken >= TURN_BYTES:
                return

    def _admit(self, admission: _Socket) -> None:
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
                origin = _plain_ip(address.decode("ascii", "replace"))
                reason = "a key dialled in that is banned here, or not among those allowed"
                self._peering.refused(origin, "GD-204", reason)

    def _on_listener_monitor(self, monitor: _Socket) -> None:
        for event, value in _monitor_events(monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._origins[value] = _peer_ip(value)
            elif event != zmq.EVENT_DISCONNECTED:
                self._broken = (event, value)  # its descriptor follows: the one I/O thread says both in a row
            else:
                origin = self._origins.pop(value, "")
                if self._broken is not None:
                    self._handshake_broken(origin, *self._broken)
                    self._broken = None
                self._peering.descriptor_closed(value)

    def _handshake_broken(self, origin: str, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            self._peering.refused(origin, "GD-201", "somebody dialled in with another network secret")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.counters.handshakes["mechanism"] += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.counters.handshakes["timeout" if value == errno.EAGAIN else "broken"] += 1


# -- reading what libzmq says ------------------------------------------------------------------------------------


def _receive(source: _Socket) -> list[zmq.Frame]:
    """The next message; [] if there is none. To ask first, and each frame whether it is the last, costs a third of
    what pyzmq's own `recv_multipart` and the error at the end of a burst do."""
    try:
        if not int(source.getsockopt(zmq.EVENTS)) & _READABLE:
            return []
        frame = source.recv(zmq.NOBLOCK, copy=False)
        frames = [frame]
        while frame.more:
            frame = source.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame)
    except zmq.ZMQError:
        return []
    return frames


def _monitor_events(monitor: _Socket) -> Iterator[tuple[int, int]]:
    while not monitor.closed:
        try:
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.ZMQError:
            return
        yield int(event["event"]), int(event["value"])


def _dial_failure(event: int, value: int, patience: float) -> tuple[str, str, str]:
    """Code, reason and the word to count it under, for a dialled connection that was not made."""
    if event == zmq.EVENT_CLOSED:
        return "GD-101", "refused", "unreachable"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "GD-204", "refused this peer's key: it is banned there, or not among those allowed", "GD-204"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return "GD-101", "answered, but is no gossipdp peer", "mechanism"
    if value == errno.EAGAIN:
        return "GD-101", f"connected, then silent for {patience:g} s", "timeout"
    reason = "broke off the encrypted handshake: the network secret differs, or it is no gossipdp peer, or none yet"
    return "GD-201", reason, "GD-201"


def _buffers(frames: list[zmq.Frame]) -> list[Buffer]:
    return [frame.bytes if len(frame) <= VIEW_BYTES else frame.buffer for frame in frames]


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""


def _source(frame: zmq.Frame) -> tuple[str, int]:
    """The IP address a message came from, and the descriptor it came in by."""
    descriptor = frame.get(zmq.SRCFD)
    return _plain_ip(_property(frame, "Peer-Address")), descriptor if isinstance(descriptor, int) else -1


def _plain_ip(address: str) -> str:
    return address.removeprefix("::ffff:")


def _peer_ip(descriptor: int) -> str:
    """Who is at the other end of a connection of libzmq's, "" if it is gone already. Not its port, which is another
    each time."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return ""
    try:
        host, *_ = borrowed.getpeername()
    except (OSError, ValueError):
        return ""
    finally:
        borrowed.detach()
    return _plain_ip(host)
