"""The control socket: the command line sends the daemon of a home one request line, and gets one reply line.

The socket is HOME/control.sock (0600). Only the same user or root may connect (SO_PEERCRED). The server never blocks:
the daemon's I/O thread polls its single descriptor beside other sockets. `services` gives the verbs their meaning.
Numpy, zmq and torch may not be imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from gossipdp.errors import (
    ConfigError,
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.runtime import unix_sockets
from gossipdp.runtime.descriptors import accept
from gossipdp.runtime.plain_json import decode, encode
from gossipdp.runtime.unix_sockets import Listening, user_of
from peers.log_file import log_file

__all__ = ["VERBS", "ControlServer", "Request", "ask", "occupied", "runs", "socket_path"]

VERBS: Final = (
    "status",
    "members",
    "decisions",
    "decide",
    "leave",
    "finish",
    "started",
    "invite",
    "checkpoint",
    "stop",
)
MAX_REQUEST: Final = 64 << 10
MAX_REPLY: Final = 16 << 20
MAX_CONNECTIONS: Final = 16
"""at one more, the oldest connection is dropped"""

_ERRORS: Final = {
    kind.exit_code: kind
    for kind in (ConfigError, UnreachableError, RefusedError, MismatchError, HardwareError, DataError)
}


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    verb: str
    args: dict[str, Any] = {}


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    code: str
    cause: str
    seen: str = ""
    do: str = ""
    exit: int = 70


class _Answer(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    reply: dict[str, Any] | None = None
    error: _Failure | None = None


def socket_path(home: Path) -> Path:
    """The path of the control socket."""
    return unix_sockets.socket_path(home, "control.sock")


# -- the daemon's side -------------------------------------------------------------------------------------------


class Request:
    """One request. Answer it once, with `reply` or `fail`, now or later."""

    def __init__(self, connection: _Connection, verb: str, args: dict[str, Any]) -> None:
        self._connection, self.verb, self.args = connection, verb, args

    def reply(self, answer: dict[str, Any]) -> None:
        """Send the answer. NaN and infinity become null. A client that is gone is no error."""
        self._connection.send(_Answer(reply=answer))

    def fail(self, error: GossipdpError) -> None:
        """Send an error, which `ask` raises in the client."""
        self._connection.send(_Answer(error=_failure(error)))


class _Connection:
    def __init__(self, server: ControlServer, peer: socket.socket) -> None:
        self.server, self.socket = server, peer
        self.incoming, self.outgoing = bytearray(), memoryview(b"")
        self.answered = False

    def receive(self) -> Request | None:
        """Read. Return the request once its line is complete."""
        try:
            piece = self.socket.recv(MAX_REQUEST)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        self.incoming += piece
        line, newline, _ = self.incoming.partition(b"\n")
        if not newline:
            if not piece:
                self.close()
            elif len(self.incoming) > MAX_REQUEST:
                self.send(_Answer(error=_Failure("usage", f"a request has at most {MAX_REQUEST} bytes", exit=2)))
            return None
        self.server.stop_reading(self)
        try:
            request = decode(line, _Line)
        except ValueError as error:
            self.send(_Answer(error=_Failure("usage", "the request cannot be parsed", f"{error!s:.200}", exit=2)))
            return None
        if request.verb not in VERBS:
            seen, do = f"{request.verb!r:.40}", "one of " + ", ".join(VERBS)
            self.send(_Answer(error=_Failure("usage", "no such verb", seen, do, exit=2)))
            return None
        return Request(self, request.verb, request.args)

    def send(self, answer: _Answer) -> None:
        if self.answered or self.socket.fileno() < 0:
            return
        self.answered = True
        line = encode(answer) + b"\n"
        if len(line) > MAX_REPLY:
            line = msgspec.json.encode(_Answer(error=_Failure("bug", f"a reply of {len(line)} bytes"))) + b"\n"
        self.outgoing = memoryview(line)
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts now. Close the connection after the last byte."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing) :]
        except BlockingIOError:
            self.server.wait_to_write(self)
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        self.server.forget(self)
        self.socket.close()


class ControlServer:
    """Listens for the daemon of `home`.

    Poll `filenos()` for reading, then call `handle`. The descriptor is also readable when a reply can continue.

    Raises:
        HardwareError: GD-104, another daemon runs for this home.
    """

    def __init__(self, home: Path) -> None:
        self.path = socket_path(home)
        self._connections: dict[int, _Connection] = {}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A lock, because it always ends with its process. A socket file may stay behind.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise occupied(home) from None
        self._listening = Listening(self.path, socket.SOCK_STREAM, MAX_CONNECTIONS)
        self._poll = select.epoll()
        self._poll.register(self._listening.socket, select.EPOLLIN)

    def filenos(self) -> list[int]:
        return [self._poll.fileno()]

    def renew(self) -> None:
        """Listen anew if the socket's file is gone."""
        if self._listening.renew():
            self._poll.register(self._listening.socket, select.EPOLLIN)

    def handle(self, fileno: int | None = None) -> list[Request]:
        """Read and write without waiting. Return the requests that are complete."""
        requests: list[Request] = []
        for ready, happened in self._poll.poll(0):
            if ready == self._listening.socket.fileno():
                self._accept()
            elif connection := self._connections.get(ready):
                if connection.outgoing:
                    connection.flush()
                elif connection.answered is False and happened & select.EPOLLIN:
                    if request := connection.receive():
                        requests.append(request)
                elif happened & (select.EPOLLHUP | select.EPOLLERR):
                    connection.close()
        return requests

    def close(self) -> None:
        """Close all connections and remove the socket. A second call does nothing."""
        if self._listening.socket.fileno() < 0:
            return
        for connection in list(self._connections.values()):
            connection.close()
        self._poll.close()
        self._listening.close()
        os.close(self._lock)

    def forget(self, connection: _Connection) -> None:
        if (fileno := connection.socket.fileno()) in self._connections:
            del self._connections[fileno]
            self._poll.unregister(fileno)

    def stop_reading(self, connection: _Connection) -> None:
        """The request is complete: from now on only the end of the connection counts."""
        self._poll.modify(connection.socket, 0)

    def wait_to_write(self, connection: _Connection) -> None:
        self._poll.modify(connection.socket, select.EPOLLOUT)

    def _accept(self) -> None:
        if (peer := accept(self._listening.socket)) is None:
            return
        with contextlib.suppress(OSError):  # the client is gone
            peer.setblocking(False)
            if user_of(peer) not in (os.getuid(), 0):
                peer.close()
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                next(iter(self._connections.values())).close()
            self._poll.register(peer, select.EPOLLIN)
            self._connections[peer.fileno()] = _Connection(self, peer)


def _failure(error: GossipdpError) -> _Failure:
    return _Failure(error.code, error.cause, error.seen, error.do, error.exit_code)


# -- the command line's side -------------------------------------------------------------------------------------


def occupied(home: Path) -> HardwareError:
    """GD-104: a second daemon for `home`."""
    do = "`gossipdp leave` ends it; for a second peer on this machine add --home DIR --listen tcp://*:4711"
    return HardwareError("GD-104", "a daemon already runs for this home", seen=str(home), do=do)


def runs(home: Path) -> bool:
    """Whether a daemon of `home` listens. No request is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as peer:
        try:
            with unix_sockets.address(socket_path(home)) as where:
                peer.connect(where)
        except BlockingIOError:  # the backlog is full
            return True
        except OSError:
            return False
    return True


def ask(home: Path, verb: str, *, timeout: float = 10.0, **args: Any) -> dict[str, Any]:
    """Send `verb` to the daemon of `home`. Return its reply.

    Raises:
        UnreachableError: GD-105, no daemon runs for `home`, or it does not answer within `timeout` seconds.
        GossipdpError: the error that the daemon answered.
    """
    line = msgspec.json.encode(_Line(verb, args)) + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        # On a full backlog a non-blocking connect fails at once. A blocking one waits for SO_SNDTIMEO.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout), int(timeout % 1 * 1e6)))
        try:
            with unix_sockets.address(socket_path(home)) as where:
                peer.connect(where)
            peer.settimeout(timeout)
            peer.sendall(line)
            reply = b"".join(_pieces(peer, time.monotonic() + timeout))
        except (TimeoutError, BlockingIOError):
            raise UnreachableError(
                "GD-105",
                "the daemon of this home does not answer",
                seen=f"{socket_path(home)}: nothing in {timeout:g} s",
                do=f"see {log_file(home, 'peer')}; if it hangs, kill it and start it again",
            ) from None
        except PermissionError as error:
            raise UnreachableError(
                "GD-105",
                "this user may not talk to the daemon of this home",
                seen=f"{home}: {error.strerror}",
                do="run the command as the user that owns the home, or choose another home with --home",
            ) from None
        except OSError as error:
            raise _absent(home, error) from None
    try:
        answer = decode(reply, _Answer)
    except ValueError:
        raise UnreachableError(
            "GD-105",
            "the daemon of this home broke off its answer",
            seen=f"{len(reply)} bytes",
            do=f"see {log_file(home, 'peer')}",
        ) from None
    if answer.error is not None:
        kind = _ERRORS.get(answer.error.exit, GossipdpError)
        raise kind(answer.error.code, answer.error.cause, seen=answer.error.seen, do=answer.error.do)
    return answer.reply or {}


def _absent(home: Path, error: OSError) -> UnreachableError:
    from peers.finished import FINAL, read_about, train_on
    from peers.rest import absence  # psutil, which most requests do not need

    seen = f"{socket_path(home)}: {error.strerror}" if home.exists() else f"{home} does not exist"
    do = "start one with `gossipdp up` or `gossipdp join`, or choose another home with --home"
    if known := absence(home):
        seen, do = known
    elif read_about(home) is not None:
        seen, do = f"its run is finished, and the final model is in {home / FINAL}", train_on(home)
    if (log := log_file(home, "peer")).exists():
        do += f"; its last lines are in {log}"
    return UnreachableError("GD-105", "no daemon runs for this home", seen=seen, do=do)


def _pieces(peer: socket.socket, deadline: float) -> Iterator[bytes]:
    total = 0
    while total <= MAX_REPLY:
        peer.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = peer.recv(1 << 18)
        if not piece:
            return
        total += len(piece)
        yield piece
