"""Makes libzmq sockets, and reads messages, monitors and connections. Only `zmq_wire` imports zmq besides this file.

Two options keep libzmq 4.3.5 from aborting the process (`Assertion failed: !_io_error`, zeromq/libzmq#4841). An engine
stops reading at the receive mark. If its connection then breaks, the engine must not write again, but its heartbeat
timer and a buffered PING make it write. So there is no receive mark (`inbox` has the bounds) and no ZMTP heartbeat
(`links` has its own).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import zmq

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BUFFER
from gossipdp.runtime.cores import threads_for, usable_cores
from gossipdp.runtime.network.dial_causes import SILENT, Cause
from gossipdp.runtime.network.host_port import plain_ip
from gossipdp.runtime.network.identity import CurveKeys
from gossipdp.runtime.network.limits import TransportLimits

__all__ = [
    "Severing",
    "Sockets",
    "await_data",
    "buffers",
    "dial_failure",
    "identify",
    "monitor_events",
    "receive",
    "received",
    "source",
    "user",
]

HIGH_WATER: Final = 64
"""messages in each pipe to libzmq; the protocol keeps fewer on their way"""
EVENTS: Final = 1024
"""most events read from a monitor at once"""
VIEW_BYTES: Final = 4096
"""received frames up to this size become bytes; larger ones stay in libzmq's memory"""
SO_COOKIE: Final = 57
"""socket(7), Linux 4.12"""
BYTES_RECEIVED: Final = slice(128, 136)
"""tcpi_bytes_received in struct tcp_info (linux/tcp.h, Linux 4.1)"""
NEVER: Final = 24 * 3600 * 1000
"""milliseconds until libzmq connects again by itself, long after the socket is closed. With -1 it would list the
interfaces whenever a connection ends, and abort the process if no descriptor is left for that"""
DEFER: Final = 1
"""seconds; `dial_causes` waits longer than this for the greeting of a peer"""
_EVENT: Final = struct.Struct("=Hi")
_READABLE: Final = int(zmq.POLLIN)
Socket = zmq.Socket[bytes]


class Sockets:
    """Makes the sockets of one peer.

    With CURVE one I/O thread of libzmq carries 0.9 GB/s, sent and received together (frames of 256 KiB to 1 MiB, an
    EPYC 7003 core). That is 3.6 Gbit/s each way, and 10 Gbit/s each way take three threads. A connection stays on one
    thread, and libzmq gives a new connection to the thread that has the fewest.

    Args:
        server: the network's CURVE server key pair.
        client: this peer's CURVE key pair.
    """

    def __init__(self, limits: TransportLimits, server: CurveKeys, client: CurveKeys) -> None:
        self._limits, self._server, self._client = limits, server, client
        self._monitors = 0
        self.context = zmq.Context(io_threads=threads_for(usable_cores()))
        self.context.set(zmq.MAX_SOCKETS, 8192)

    def admission(self) -> Socket:
        """The socket on which libzmq asks whether a key may dial in (ZAP, ZeroMQ RFC 27)."""
        admission: Socket = self.context.socket(zmq.REP)
        admission.bind("inproc://zeromq.zap.01")
        return admission

    def router(self) -> Socket:
        router = self._new(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, self._server.secret)
        router.setsockopt(zmq.ZAP_DOMAIN, b"gossipdp")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.BACKLOG, 4096)
        return router

    def dealer(self) -> Socket:
        dealer = self._new(zmq.DEALER)
        for option, value in (
            (zmq.CURVE_SERVERKEY, self._server.public),
            (zmq.CURVE_PUBLICKEY, self._client.public),
            (zmq.CURVE_SECRETKEY, self._client.secret),
            (zmq.RECONNECT_IVL, NEVER),
            (zmq.IMMEDIATE, 1),
            (zmq.CONNECT_TIMEOUT, int(self._limits.connect * 1000)),
        ):
            dealer.setsockopt(option, value)
        return dealer

    def ask(self, endpoint: str, question: Sequence[Buffer], seconds: float) -> list[Buffer]:
        """Dial `endpoint`, and send one message. It blocks.

        Returns:
            The answer; [] if the connection breaks, or none comes within `seconds`.
        """
        dealer = self.dealer()
        monitor = self.monitor(dealer, zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED)
        try:
            dealer.connect(endpoint)
            dealer.setsockopt(zmq.SNDTIMEO, 0)
            poller = zmq.Poller()
            poller.register(monitor, zmq.POLLIN)
            poller.register(dealer, zmq.POLLOUT)
            if dealer not in dict(poller.poll(int(seconds * 1000))):
                return []
            dealer.send_multipart(question)
            poller.register(dealer, zmq.POLLIN)
            return list(dealer.recv_multipart()) if dealer in dict(poller.poll(int(seconds * 1000))) else []
        except zmq.ZMQError:
            return []
        finally:
            dealer.disable_monitor()
            monitor.close()
            dealer.close()

    def close(self) -> None:
        """Close all sockets."""
        self.context.destroy(linger=0)

    def monitor(self, watched: Socket, events: int) -> Socket:
        self._monitors += 1
        endpoint = f"inproc://monitor-{self._monitors}"
        watched.monitor(endpoint, events)
        monitor: Socket = self.context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, 0)  # a full monitor would stop libzmq's I/O thread
        monitor.connect(endpoint)
        return monitor

    def _new(self, kind: int) -> Socket:
        made: Socket = self.context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, 0),  # see the top of this file, also for HEARTBEAT_IVL
            (zmq.HEARTBEAT_IVL, 0),
            (zmq.MAXMSGSIZE, MAX_BUFFER + 1024),
            (zmq.HANDSHAKE_IVL, int(self._limits.handshake * 1000)),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 30),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_KEEPALIVE_CNT, 3),
        ):
            made.setsockopt(option, value)
        return made


def receive(source: Socket) -> list[zmq.Frame]:
    """The next message; [] if there is none.

    This asks for events first, and each frame for more. It costs a third of pyzmq's `recv_multipart`, whose burst ends
    with an exception.
    """
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


def monitor_events(monitor: Socket) -> Iterator[tuple[int, int]]:
    """Up to EVENTS events with their values. libzmq's thread may make them faster than they are read."""
    for _ in range(EVENTS):
        if monitor.closed:
            return
        try:
            event, value = _EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
        except zmq.ZMQError:
            return
        yield event, value


def dial_failure(event: int, value: int, patience: float) -> tuple[Cause, str]:
    """Cause and label of the count for a dialled connection that was not made."""
    if event == zmq.EVENT_CLOSED:
        return Cause("GD-101", "refused, or no route"), "unreachable"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Cause("GD-204", "refused this peer's key", "it is banned there, or is not an allowed peer"), "GD-204"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return Cause("GD-101", "answered, but is not a gossipdp peer"), "mechanism"
    if value == errno.EAGAIN:
        return Cause("GD-101", f"connected, then silent for {patience:g} s", do=SILENT), "timeout"
    detail = "the network secret differs, or no gossipdp peer answers there yet"
    return Cause("GD-201", "broke off the encrypted handshake", detail), "GD-201"


def buffers(frames: list[zmq.Frame]) -> list[Buffer]:
    return [frame.bytes if len(frame) <= VIEW_BYTES else frame.buffer for frame in frames]


def user(frame: zmq.Frame) -> str:
    """The CURVE key that admission attached to the connection of a message, as hexadecimal digits; "" if unknown."""
    return _property(frame, "User-Id")


def source(frame: zmq.Frame) -> tuple[str, int]:
    """The IP address that a message came from, and the descriptor of its connection."""
    descriptor = frame.get(zmq.SRCFD)
    return plain_ip(_property(frame, "Peer-Address")), descriptor if isinstance(descriptor, int) else -1


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""


# -- connections that libzmq accepted --------------------------------------------------------------------------------
#
# A monitor reports their descriptors. A descriptor may be closed by now, and its number used for another file. The
# kernel's cookie tells sockets apart.


def await_data(listener: int) -> None:
    """Let the kernel report connections of a listener only after data came: a dialler sends first."""
    with suppress(OSError), socket.socket(fileno=os.dup(listener)) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER)


def identify(descriptor: int) -> tuple[str, bytes]:
    """The IP address at the other end of a connection, and the connection's cookie; both empty if it is gone."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return "", b""
    try:
        host, *_ = borrowed.getpeername()
        return plain_ip(host), borrowed.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
    except (OSError, ValueError):
        return "", b""
    finally:
        borrowed.detach()


def received(descriptor: int) -> int:
    """Bytes that a connection has ever received."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return 0
    try:
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.stop)
    except OSError:
        return 0
    finally:
        borrowed.detach()
    return int.from_bytes(info[BYTES_RECEIVED], sys.byteorder)


class Severing:
    """Shuts down connections of libzmq.

    It keeps a descriptor number of its own, so it never needs a new one, and shuts down only what it has checked.
    """

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._own = os.dup(self._nothing)

    def hang_up(self, descriptor: int, cookie: bytes) -> None:
        """Shut down the connection with this cookie, if it still exists. libzmq then closes it."""
        with suppress(OSError):
            os.dup2(descriptor, self._own, inheritable=False)
            connection = socket.socket(fileno=self._own)
            try:
                if cookie and connection.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8) == cookie:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()
        os.dup2(self._nothing, self._own, inheritable=False)

    def close(self) -> None:
        os.close(self._nothing)
        os.close(self._own)
