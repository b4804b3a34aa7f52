"""The ZeroMQ sockets of one peer: they dial, admit, send and receive, and report what happens to `Links`.

One ROUTER is bound. A peer is dialled with two DEALERs, so that a payload on the data lane never delays a ping on the
control lane. CURVE is always on (see `identity`), and ZAP admits or refuses keys. libzmq never reconnects by itself:
the protocol decides when to dial again. Only `sockets` imports zmq besides this file.

Nothing here blocks but `wait`, and nothing a remote does becomes an exception.
"""

from __future__ import annotations

import errno
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import zmq

from gossipdp.errors import ConfigError, UnreachableError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.network.connections import Connection
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.events import TransportCounters
from gossipdp.runtime.network.host_port import plain_ip, split_address
from gossipdp.runtime.network.identity import CurveKeys
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.proxy import Proxy, Tunnels, Unreached
from gossipdp.runtime.network.sockets import (
    Severing,
    Socket,
    Sockets,
    await_data,
    buffers,
    dial_failure,
    identify,
    monitor_events,
    receive,
    received,
)
from gossipdp.runtime.network.sockets import source as source_of
from gossipdp.runtime.network.sockets import user as user_of
from gossipdp.runtime.network.unproven import Unproven, UnprovenConnection
from gossipdp.runtime.network.wire import (
    Answered,
    Arrived,
    Ended,
    Failed,
    Gone,
    Opened,
    Overflowed,
    Refused,
    WireEvent,
)

__all__ = ["Inbox", "ZmqWire"]


OVERHEAD: Final = 1024
"""bytes that an unread message costs besides its frames"""

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")


class Inbox(Generic[K, M]):
    """Messages that were read from sockets and wait for the peer: one queue for each connection, taken in turn.

    libzmq gets no receive mark. At its mark it stops reading a connection, and such a connection may abort the process
    when the other end vanishes (zeromq/libzmq#4841). So everything is read at once, and the bounds are here. A
    connection past them is closed.

    Args:
        messages: bound for one connection, in messages.
        size: bound for one connection, in bytes.
        total: bound for all connections together, in bytes.
    """

    def __init__(self, messages: int, size: int, total: int) -> None:
        self._messages, self._size, self._total = messages, size, total
        self._waiting: dict[K, deque[tuple[M, int]]] = {}
        self._bytes: dict[K, int] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, key: K, message: M, size: int) -> K | None:
        """Queue a message of `size` bytes.

        Returns:
            The connection to close because it is past a bound; None if all are within.
        """
        queue = self._waiting.setdefault(key, deque())
        queue.append((message, size))
        self._count(key, size + OVERHEAD)
        if len(queue) > self._messages or self._bytes[key] > self._size:
            return key
        if self.bytes > self._total:
            return max(self._bytes, key=self._bytes.__getitem__)
        return None

    def take(self, messages: int, size: int) -> Iterator[tuple[K, M, int]]:
        """Up to `messages` messages and about `size` bytes: one of each connection in turn."""
        taken = 0
        for _ in range(messages):
            if not self._waiting or taken >= size:
                return
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            message, length = queue.popleft()
            self._count(key, -length - OVERHEAD)
            if queue:
                self._waiting[key] = queue  # last in the order
            else:
                del self._bytes[key]
            taken += length
            yield key, message, length

    def drop(self, key: K) -> deque[tuple[M, int]]:
        """Forget a connection. Returns its messages and their sizes."""
        self.bytes -= self._bytes.pop(key, 0)
        return self._waiting.pop(key, deque())

    def _count(self, key: K, size: int) -> None:
        self.bytes += size
        self._bytes[key] = self._bytes.get(key, 0) + size


TURN_BYTES: Final = 1 << 19
"""bytes of messages taken in one turn: more would leave the caches before they are used"""
READ: Final = 4096
"""most messages read from one socket in one turn"""
LOOK: Final = 0.5
"""seconds between two looks for messages without end"""
GRACE: Final = 0.5
"""seconds in which the other side may close a connection whose link is over"""
ROUTE: Final = b"\0"
"""begin of the routes that libzmq chooses. A dialler may name its own, which begins otherwise: none of ours does"""
MAX_CUT: Final = 1024
"""most routes remembered of connections that were closed for sending too much"""
COPY_BYTES: Final = 64 << 10
"""libzmq takes sent messages past this size without a copy"""
_LISTENER_EVENTS: Final = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_DIALLER_EVENTS: Final = zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ZmqWire:
    """The ZeroMQ sockets of one peer.

    Args:
        server: the network's CURVE server keys.
        client: this peer's CURVE keys.
        admits: whether a CURVE key may dial in.
        unproven: most inbound connections without a proven member.
        proxy: through which to dial; None: directly.
        clock: the time in seconds.
    """

    def __init__(
        self,
        limits: TransportLimits,
        server: CurveKeys,
        client: CurveKeys,
        *,
        admits: Callable[[bytes], bool],
        unproven: int,
        proxy: Proxy | None,
        counters: TransportCounters,
        clock: Callable[[], float],
    ) -> None:
        self.port = 0
        self.address_bound = ""
        self._limits, self._admits, self._counters, self._clock = limits, admits, counters, clock
        self.unproven = Unproven(unproven, limits.unproven, lambda connection: received(connection.descriptor))
        self._severing = Severing()
        self._broken: tuple[int, int] | None = None
        """the handshake failure whose descriptor the next event names"""
        self._watched: Collection[int] = ()
        self._polled: list[tuple[Any, int]] = []
        self._callbacks: dict[Socket, Callable[[], Iterator[WireEvent]]] = {}
        self._dialled: dict[Connection, tuple[Socket, Socket | None]] = {}
        """DEALER and its monitor of each dialled connection"""
        self._router: Socket | None = None
        self._inbox: Inbox[bytes | Connection, list[zmq.Frame]] = Inbox(
            limits.queue_messages, limits.queue_bytes, limits.total_bytes
        )
        self._cut: dict[bytes, None] = {}
        """routes of connections that sent too much: what libzmq still has of them is not kept"""
        self._descriptors: dict[Connection, int] = {}
        """of the dialled connections"""
        self._whole: Counter[bytes | Connection] = Counter()
        """messages read of each connection"""
        self._marks: dict[bytes | Connection, tuple[int, int]] = {}
        """these, and the bytes that had come, when they were last seen to grow"""
        self._look_at = -math.inf
        self._sockets = Sockets(limits, server, client)
        self._poller = zmq.Poller()
        self._tunnels = None if proxy is None else Tunnels(proxy, limits.connect)
        self._tunnelled: dict[int, Connection] = {}
        """connections that the proxy makes or has made, by number"""
        self._tunnel = 0
        if self._tunnels is not None:
            self._poller.register(self._tunnels.fileno(), zmq.POLLIN)

    def close(self, linger: float) -> None:
        """Close everything. Messages handed to libzmq still have `linger` seconds to leave."""
        for watched in self._callbacks:
            watched.disable_monitor()  # see `shut`
        self._callbacks.clear()
        self._sockets.context.destroy(linger=int(linger * 1000))
        self._severing.close()
        if self._tunnels is not None:
            self._tunnels.close()

    # -- a turn --------------------------------------------------------------------------------------------------

    @property
    def unread(self) -> bool:
        """Whether messages were read from sockets and not yet reported."""
        return bool(self._inbox)

    def wait(self, seconds: float, readable: Collection[int]) -> set[int]:
        """Wait at most `seconds` for the network or for one of the descriptors `readable`; returns the readable ones.

        `events` then reports what happened.
        """
        watched = tuple(readable)
        if watched != self._watched:
            for descriptor in set(self._watched) - set(watched):
                self._poller.unregister(descriptor)
            for descriptor in set(watched) - set(self._watched):
                self._poller.register(descriptor, zmq.POLLIN)
            self._watched = watched
        self._polled = self._poller.poll(math.ceil(seconds * 1000))
        return {source for source, _ in self._polled if isinstance(source, int) and source in watched}

    def events(self) -> Iterator[WireEvent]:
        """What happened since the last turn. Handle each event before the next is asked for."""
        for source, _ in self._polled:
            if callback := self._callbacks.get(source):  # what an earlier event led to may have closed this socket
                yield from callback()
        if self._tunnels is not None:
            yield from self._on_tunnels(self._tunnels)
        for key, message, size in self._inbox.take(self._limits.turn, TURN_BYTES):
            if isinstance(key, Connection):
                yield Answered(key, buffers(message), size)
            else:
                route, *frames = message
                yield Arrived(key, user_of(route), buffers(frames), size, partial(source_of, route), self)

    def endless(self) -> Iterator[WireEvent]:
        """Connections on which more came than may be unread, and no message of it is whole.

        The bounds are those of unread messages, for each connection and for all together. libzmq keeps the frames of a
        message until its last one, without a bound. Call this after `events`, which reads every whole message.
        """
        if (now := self._clock()) < self._look_at:
            return
        self._look_at = now + LOOK
        found: list[tuple[bytes | Connection, int]] = [*self.unproven.links().items(), *self._descriptors.items()]
        links, begun = dict(found), dict[bytes | Connection, int]()
        self._whole = Counter({key: count for key, count in self._whole.items() if key in links})
        self._marks = {key: mark for key, mark in self._marks.items() if key in links}
        numbers: dict[bytes | Connection, int] = {each: number for number, each in self._tunnelled.items()}
        for key, descriptor in links.items():
            whole, came = self._whole[key], self._came(numbers.get(key), descriptor)
            if self._marks.get(key, (-1, 0))[0] != whole:
                self._marks[key] = whole, came
            begun[key] = came - self._marks[key][1]
        largest = max(begun.values(), default=0)
        over = min(self._limits.queue_bytes, largest if sum(begun.values()) > self._limits.total_bytes else math.inf)
        for key in [key for key, size in begun.items() if size >= over and size > 0]:
            yield Overflowed(key, 1)

    def _came(self, number: int | None, descriptor: int) -> int:
        """Bytes that have come on a connection. number: of its tunnel."""
        return received(descriptor) if number is None or self._tunnels is None else self._tunnels.came(number)

    def hang_up(self, connection: UnprovenConnection) -> None:
        """Close an inbound connection on which no member is proven."""
        self._severing.hang_up(connection.descriptor, connection.cookie)

    # -- what `Links` asks (see `Wire`) --------------------------------------------------------------------------

    def open(self, connection: Connection, endpoint: str) -> None:
        if self._tunnels is None:
            self._dial(connection, endpoint)
            return
        self._tunnel += 1
        self._tunnelled[self._tunnel] = connection
        self._tunnels.open(self._tunnel, *split_address(endpoint.removeprefix("tcp://")))

    def _on_tunnels(self, tunnels: Tunnels) -> Iterator[WireEvent]:
        """What came of the connections that the proxy is to make."""
        for found in tunnels.collect():
            connection = self._tunnelled.get(found.number)
            if connection is None:
                continue  # `shut` has dropped it
            if isinstance(found, Unreached):
                yield Failed(connection, found.cause, "proxy")
            else:
                try:
                    self._dial(connection, found.endpoint)
                except OSError as error:
                    cause = Cause("GD-104", "cannot open a socket here", error.strerror or "")
                    yield Failed(connection, cause, "proxy")

    def _dial(self, connection: Connection, endpoint: str) -> None:
        try:
            with spare():
                dealer = self._sockets.dealer()
                self._dialled[connection] = (dealer, None)
                monitor = self._sockets.monitor(dealer, _DIALLER_EVENTS | _HANDSHAKE_FAILURES)
                self._dialled[connection] = (dealer, monitor)
            self._attach(monitor, lambda: self._on_dialler_monitor(connection, monitor))
            self._attach(dealer, lambda: self._on_dealer(connection))
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None

    def push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        parts: Sequence[Buffer]
        if connection in self._dialled:
            out, parts = self._dialled[connection][0], frames
        else:
            assert self._router is not None
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
        self.unproven.proven(connection.descriptor, connection.route)

    def dismiss(self, connection: Connection) -> None:
        self.unproven.dismissed(connection.descriptor, connection.route, self._clock(), GRACE)

    def shut(self, connection: Connection, linger: float) -> None:
        if self._tunnels is not None:
            for number in [number for number, each in self._tunnelled.items() if each is connection]:
                del self._tunnelled[number]
                self._tunnels.drop(number)
        if connection not in self._dialled:
            return
        dealer, monitor = self._dialled.pop(connection)
        self._descriptors.pop(connection, None)
        # Events are sent by libzmq's I/O thread: a PAIR without its reader blocks it forever, and with it all links.
        dealer.disable_monitor()
        if monitor is not None:
            self._detach(monitor)
        self._detach(dealer, linger)
        self._inbox.drop(connection)

    # -- sockets -------------------------------------------------------------------------------------------------

    def listen(self, endpoint: str) -> None:
        """Bind `endpoint`. Raises UnreachableError GD-104 or ConfigError, see `Transport`."""
        admission = self._sockets.admission()
        self._attach(admission, lambda: self._admit(admission))
        self._router = router = self._sockets.router()
        monitor = self._sockets.monitor(router, _LISTENER_EVENTS | _HANDSHAKE_FAILURES)
        self._attach(monitor, lambda: self._on_listener_monitor(monitor))
        try:
            router.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnreachableError(
                    "GD-104",
                    "the port is busy",
                    seen=endpoint,
                    do="stop what listens there, or use another port: --listen tcp://*:PORT, or [network] listen",
                ) from None
            raise ConfigError("usage", f"cannot listen there: {error.strerror}", seen=endpoint) from None
        self.address_bound = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address_bound.rpartition(":")[2])
        self._attach(router, self._on_router)

    def _attach(self, source: Socket, callback: Callable[[], Iterator[WireEvent]]) -> None:
        self._callbacks[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def _detach(self, source: Socket, linger: float = 0) -> None:
        if self._callbacks.pop(source, None) is not None:
            self._poller.unregister(source)
        source.close(int(linger * 1000))

    # -- what happens on them ------------------------------------------------------------------------------------

    def _on_dialler_monitor(self, connection: Connection, monitor: Socket) -> Iterator[WireEvent]:
        for event, value in monitor_events(monitor):
            if self._tunnels is not None:
                yield from self._on_tunnels(self._tunnels)  # told before the end that libzmq reports, and knows why
                if connection not in self._dialled:
                    return
            if event == zmq.EVENT_CONNECTED:
                self._descriptors[connection] = value
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield Opened(connection)
            elif event == zmq.EVENT_DISCONNECTED:
                self._descriptors.pop(connection, None)
                yield from self._on_dealer(connection)  # what arrived before the end still counts
                for frames, size in self._inbox.drop(connection):
                    if connection in self._dialled:
                        yield Answered(connection, buffers(frames), size)
                if connection in self._dialled:
                    yield Ended(connection)
            elif connection in self._dialled:
                yield Failed(connection, *dial_failure(event, value, self._limits.handshake))

    def _on_dealer(self, connection: Connection) -> Iterator[WireEvent]:
        """Read what arrived on a dialled connection."""
        for _ in range(READ):
            if connection not in self._dialled or not (frames := receive(self._dialled[connection][0])):
                return
            self._whole[connection] += 1
            yield from self._keep(connection, frames, sum(map(len, frames)))

    def _on_router(self) -> Iterator[WireEvent]:
        """Read what arrived on inbound connections."""
        assert self._router is not None
        for _ in range(READ):
            if not (message := receive(self._router)):
                return
            route = message[0].bytes
            if route[:1] != ROUTE:
                self._counters.drops["unverified"] += 1
                continue
            self._whole[route] += 1
            if route not in self._cut:
                yield from self._keep(route, message, sum(map(len, message)) - len(route))

    def _keep(self, key: bytes | Connection, message: list[zmq.Frame], size: int) -> Iterator[WireEvent]:
        """Queue a message. A connection past the bounds loses all that it sent."""
        if (over := self._inbox.add(key, message, size)) is None:
            return
        unread = len(self._inbox.drop(over))
        if isinstance(over, bytes):
            self._cut[over] = None
            if len(self._cut) > MAX_CUT:
                del self._cut[next(iter(self._cut))]
        yield Overflowed(over, unread)

    def _admit(self, admission: Socket) -> Iterator[WireEvent]:
        """ZAP (ZeroMQ RFC 27): admit CURVE keys, and name the connection by its key."""
        while True:
            try:
                request = admission.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            _, sequence, _, address, _, mechanism, *credentials = request
            key = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
            admitted = bool(key) and self._admits(key)
            status = (b"200", b"OK", key.hex().encode()) if admitted else (b"400", b"refused", b"")
            admission.send_multipart([b"1.0", sequence, *status, b""], zmq.NOBLOCK)
            if not admitted:
                origin = plain_ip(address.decode("ascii", "replace"))
                yield Refused(origin, "GD-204", "a peer dialled in whose key is banned or not allowed here")

    def _on_listener_monitor(self, monitor: Socket) -> Iterator[WireEvent]:
        for event, value in monitor_events(monitor):
            if event == zmq.EVENT_LISTENING:
                await_data(value)
            elif event == zmq.EVENT_ACCEPTED:
                origin, cookie = identify(value)
                self.unproven.accepted(value, cookie, origin, self._clock())
            elif event != zmq.EVENT_DISCONNECTED:
                self._broken = (event, value)  # libzmq reports the descriptor in the event that follows
            else:
                origin = self.unproven.closed(value)
                if self._broken is not None:
                    yield from self._handshake_broken(origin, *self._broken)
                    self._broken = None
                yield Gone(value)

    def _handshake_broken(self, origin: str, event: int, value: int) -> Iterator[WireEvent]:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            yield Refused(origin, "GD-201", "a peer dialled in with another network secret")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._counters.handshakes["mechanism"] += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._counters.handshakes["timeout" if value == errno.EAGAIN else "broken"] += 1
