"""Making libzmq sockets, and reading messages, monitors and connections. Beside `transport` the only file with zmq.

Two options keep libzmq 4.3.5 from aborting the process (`Assertion failed: !_io_error`, zeromq/libzmq#4841). An engine
that stopped reading at the receive mark, whose connection then breaks, must not write again; its heartbeat timer and a
buffered PING make it write. So there is no receive mark (`inbox` has the bounds) and no ZMTP heartbeat (`peering` has
its own).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from gossipdp.protocol.messages import MAX_BUFFER
from gossipdp.protocol.wire import Buffer
from gossipdp.runtime.identity import CurveKeys
from gossipdp.runtime.transport_events import TransportLimits

__all__ = ["Sockets", "buffers", "dial_failure", "monitor_events", "peer_ip", "plain_ip", "receive", "source", "user"]

HIGH_WATER: Final = 64
"""messages in each pipe to libzmq; the protocol's credit stays below"""
VIEW_BYTES: Final = 4096
"""received frames up to this size become bytes, larger ones stay where libzmq put them"""
_READABLE: Final = int(zmq.POLLIN)
Socket = zmq.Socket[bytes]


class Sockets:
    """Makes the sockets of one transport.

    Args:
        server: the network's CURVE server key pair.
        client: this peer's own CURVE key pair.
    """

    def __init__(self, limits: TransportLimits, server: CurveKeys, client: CurveKeys) -> None:
        self._limits, self._server, self._client = limits, server, client
        self._monitors = 0
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, 8192)

    def admission(self) -> Socket:
        """The socket on which libzmq asks whether to admit a key (ZAP, ZeroMQ RFC 27)."""
        admission: Socket = self.context.socket(zmq.REP)
        admission.bind("inproc://zeromq.zap.01")
        return admission

    def router(self) -> Socket:
        router = self._new(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, self._server.secret)
        router.setsockopt(zmq.ZAP_DOMAIN, b"gossipdp")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.BACKLOG, 1024)
        return router

    def dealer(self) -> Socket:
        dealer = self._new(zmq.DEALER)
        for option, value in (
            (zmq.CURVE_SERVERKEY, self._server.public),
            (zmq.CURVE_PUBLICKEY, self._client.public),
            (zmq.CURVE_SECRETKEY, self._client.secret),
            (zmq.RECONNECT_IVL, -1),
            (zmq.IMMEDIATE, 1),
            (zmq.CONNECT_TIMEOUT, int(self._limits.connect * 1000)),
        ):
            dealer.setsockopt(option, value)
        return dealer

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
            (zmq.RCVHWM, 0),  # see the top of this file, as for HEARTBEAT_IVL
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


def monitor_events(monitor: Socket) -> Iterator[tuple[int, int]]:
    while not monitor.closed:
        try:
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.ZMQError:
            return
        yield int(event["event"]), int(event["value"])


def dial_failure(event: int, value: int, patience: float) -> tuple[str, str, str]:
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


def buffers(frames: list[zmq.Frame]) -> list[Buffer]:
    return [frame.bytes if len(frame) <= VIEW_BYTES else frame.buffer for frame in frames]


def user(frame: zmq.Frame) -> str:
    """The CURVE key that admission gave the connection of a message, as hexadecimal digits; "" if unknown."""
    return _property(frame, "User-Id")


def source(frame: zmq.Frame) -> tuple[str, int]:
    """The IP address a message came from, and the descriptor it came in by."""
    descriptor = frame.get(zmq.SRCFD)
    return plain_ip(_property(frame, "Peer-Address")), descriptor if isinstance(descriptor, int) else -1


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""


def plain_ip(address: str) -> str:
    return address.removeprefix("::ffff:")


def peer_ip(descriptor: int) -> str:
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
    return plain_ip(host)
