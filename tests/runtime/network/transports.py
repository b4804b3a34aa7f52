"""Transports on loopback with real sockets, a raw dialler and a relay."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import zmq

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.encoding import Buffer, encode
from gossipdp.protocol.wire.messages import Lane, Ping
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.events import Received, TransportEvent
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.local_peer import LocalPeer
from gossipdp.runtime.network.signed_hello import DiallerHello, ListenerHello
from gossipdp.runtime.network.transport import Transport
from simulations.processes.progress import until

RUN = bytes(range(16))
START = bytes(8)
PING = encode(Ping(1))
PATIENT = TransportLimits(handshake=60.0, hello=60.0, drain=0.2, redial=0.01)
"""for links that are to come up, however busy the machine is"""
FAST = replace(PATIENT, handshake=0.3, hello=0.5)
"""for tests that wait for a limit"""
T = TypeVar("T", bound=TransportEvent)


class Net:
    """Transports of one test, polled in turn, with everything that happened to each."""

    name = "transports"

    def __init__(self) -> None:
        self.secret = NetworkSecret.generate()
        self.transports: list[Transport] = []
        self.happened: dict[int, list[TransportEvent]] = {}

    def peer(
        self,
        identity: Identity | None = None,
        *,
        allowed: Iterable[bytes] = (),
        banned: Iterable[bytes] = (),
        **changes: Any,
    ) -> Transport:
        identity = identity or Identity.generate()
        settings: dict[str, Any] = {
            "network": "tiny",
            "run": RUN,
            "incarnation": 1,
            "listen": "tcp://127.0.0.1:0",
            "limits": PATIENT,
            "admission": Admission(identity.id, allowed=frozenset(allowed), banned=frozenset(banned)),
        } | changes
        secret = settings.pop("secret", self.secret)
        transport = Transport(identity, secret, **settings)
        self.transports.append(transport)
        self.happened[id(transport)] = []
        return transport

    def close(self, transport: Transport) -> None:
        self.transports.remove(transport)
        transport.close()

    def turn(self) -> None:
        for transport in self.transports:
            self.happened[id(transport)] += transport.poll(0.001)[0]

    def until(self, reached: Callable[[], object]) -> None:
        until("what the transports are to do", reached, [self], meanwhile=self.turn)

    def settle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= deadline)

    def ends(self) -> str:
        return ""

    def last_words(self) -> str:
        return "\n".join(str(events[-5:]) for events in self.happened.values())

    def events(self, transport: Transport, kind: type[T]) -> list[T]:
        return [event for event in self.happened[id(transport)] if isinstance(event, kind)]

    def take(self, transport: Transport, kind: type[T]) -> list[T]:
        """The events of one kind, which are then forgotten."""
        found = self.events(transport, kind)
        self.happened[id(transport)] = [event for event in self.happened[id(transport)] if event not in found]
        return found

    def forget(self) -> None:
        for events in self.happened.values():
            events.clear()

    def link(self, dialler: Transport, listener: Transport) -> None:
        assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
        self.until(lambda: self.events(listener, Received))
        self.forget()


def name(transport: Transport) -> bytes:
    return transport.identity.id


def at(transport: Transport) -> str:
    return f"127.0.0.1:{transport.port}"


class Relay:
    """A TCP relay between a dialler and `port` that can stall without closing a connection.

    Args:
        most: bytes after which it stalls.
    """

    def __init__(self, port: int, most: float = math.inf) -> None:
        self._target, self._left = port, most
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.stalled = threading.Event()
        self._done = threading.Event()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        self._server.settimeout(0.002)
        while not self._done.is_set():
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                pairs[near], pairs[far] = far, near
                self._connections += [near, far]
                for end in (near, far):
                    end.setblocking(False)
            except TimeoutError:
                pass
            for source, target in pairs.items():
                try:
                    if not self.stalled.is_set() and (data := source.recv(1 << 16)):
                        target.sendall(data)
                        self._left -= len(data)
                        if self._left <= 0:
                            self.stalled.set()
                except OSError:
                    pass

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for connection in (self._server, *self._connections):
            connection.close()


class Stranger:
    """A raw DEALER with or without CURVE that sends what a test chooses."""

    def __init__(self, port: int, secret: NetworkSecret | None = None, identity: Identity | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if secret is not None and identity is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, secret.curve_server_keys().public)
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve.public)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve.secret)
        self.port = port

    def watch(self) -> zmq.Socket[bytes]:
        """A socket that can be read once the connection is lost."""
        return self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def connect(self) -> Stranger:
        self.socket.connect(f"tcp://127.0.0.1:{self.port}")
        return self

    def say(self, frames: list[Buffer]) -> None:
        self.socket.send_multipart(frames)

    def heard(self) -> signed_hello.ServiceMessage | None:
        try:
            return signed_hello.unpack(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def __enter__(self) -> Stranger:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)


def hear(net: Net, stranger: Stranger) -> signed_hello.ServiceMessage:
    heard: list[signed_hello.ServiceMessage] = []

    def listen() -> bool:
        if (message := stranger.heard()) is not None:
            heard.append(message)
        return bool(heard)

    net.until(listen)
    return heard[0]


def local_peer(identity: Identity, **changes: Any) -> LocalPeer:
    settings: dict[str, Any] = {"network": "tiny", "run": RUN, "incarnation": 1, "start": START} | changes
    settings["secret"] = changes.get("secret") or NetworkSecret(bytes(32))
    return LocalPeer(identity, **settings, admission=Admission(identity.id))


def dialler(identity: Identity, **changes: Any) -> DiallerHello:
    me = local_peer(identity, **changes)
    return DiallerHello(me, os.urandom(32), Lane.CONTROL, me.secret.generation)


def answered(hello: DiallerHello, there: ListenerHello) -> signed_hello.Answer:
    """What a listener answers to a hello."""
    said = signed_hello.unpack(hello.hello())
    assert isinstance(said, signed_hello.Hello)
    answer = signed_hello.unpack(there.hello(said))
    assert isinstance(answer, signed_hello.Answer)
    return answer
