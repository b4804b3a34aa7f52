"""A small HTTP server on its own thread, which answers scrapes of the metrics. It serves any WSGI application.

Standard library only. The application must only read. Requests need no password, and the default address is loopback.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import sys
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from gossipdp.errors import ConfigError, HardwareError
from gossipdp.runtime.descriptors import accept

__all__ = ["HttpServer"]

log = logging.getLogger("gossipdp.metrics")

PORTS: Final = 100
"""ports tried, upwards from the one asked for"""
MOST: Final = 16
"""most connections open at once"""
PAUSE: Final = 0.02
"""seconds without a new connection while no descriptor is left"""
DEADLINE: Final = 10.0
"""seconds from a connection to the end of its answer"""
TELL_AGAIN: Final = 60.0
"""seconds between two log lines about readers"""


class _Request(WSGIRequestHandler):
    server: HttpServer

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        self.server.asked(self.connection)
        if self.server.serves(self.headers.get("Host", "")):
            return True
        self.send_error(421, "this host has another name")
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape every few seconds is no news."""


class HttpServer(ThreadingMixIn, WSGIServer):
    """The standard library's server, without its look-up of the host's own name, which may take seconds.

    Args:
        listen: "host:port", "[v6]:port", "*:port". If the port is busy, the next free one is taken; 0 takes any.
        application: answers the requests.
        deadline: seconds from a connection to the end of its answer.

    Raises:
        ConfigError: GD-311, `listen` is no address.
        HardwareError: GD-104, no port is free, or the address is not this host's.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, listen: str, application: WSGIApplication, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._silent: dict[socket.socket, float] = {}
        """when each connection without a request is closed"""
        self._asking: dict[socket.socket, float] = {}
        """when each connection with a request is closed"""
        self._lock = threading.Lock()
        self._told = -math.inf
        host, port = _endpoint(listen)
        self._name = listen.rpartition(":")[0].lower()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for candidate in range(port, min(port + PORTS, 65536)) if port else (0,):
            try:
                super().__init__((host, candidate), _Request)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _unusable(listen, error) from None
        else:
            raise HardwareError(
                "GD-104",
                "no port is free for metrics",
                seen=f"{host}, ports {port} to {min(port + PORTS, 65536) - 1} are busy",
                do="set metrics.listen to a free port, or to off",
            )
        self.set_app(application)
        self._thread = threading.Thread(target=self.serve_forever, name="http", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)  # a reader sends first
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    # -- connections: few, and each for a short time -------------------------------------------------------------

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            connection: socket.socket | None = self.socket.accept()[0]
        except OSError:
            time.sleep(PAUSE)  # a rush of readers must not use up the reserve of descriptors
            connection = accept(self.socket)
        if connection is None:
            raise OSError(errno.EMFILE, "no connection, or no descriptor for it")
        try:
            return connection, connection.getpeername()
        except OSError:
            connection.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._silent) + len(self._asking) >= MOST:
                oldest = next(iter(self._silent or self._asking))
                self._cut(oldest, f"more than {MOST} readers at once")
            self._silent[request] = time.monotonic() + self._deadline
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._silent.pop(request, None)
            self._asking.pop(request, None)
        super().shutdown_request(request)

    def asked(self, connection: socket.socket) -> None:
        """The request of `connection` has come."""
        with self._lock:
            if (end := self._silent.pop(connection, None)) is not None:
                self._asking[connection] = end

    def serves(self, host: str) -> bool:
        """Whether a request with this Host header is answered.

        A web page can point its own name at this host and let a browser read what only this host may read (DNS
        rebinding). Such a request has the page's name as Host. A server that listens to other hosts takes any name.
        """
        name = (host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host).strip("[]").lower()
        if not name or name in ("localhost", self._name) or not ip_address(self.server_name).is_loopback:
            return True
        try:
            return bool(ip_address(name))
        except ValueError:
            return False

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            for connection, end in [*self._silent.items(), *self._asking.items()]:
                if now >= end:
                    self._cut(connection, f"not done in {self._deadline:g} s")

    def handle_error(self, request: Any, client_address: Any) -> None:
        self._tell(f"{client_address[0]}: {sys.exc_info()[1]}")

    def _cut(self, connection: socket.socket, reason: str) -> None:
        """End a connection. Its thread notices and ends."""
        self._silent.pop(connection, None)
        self._asking.pop(connection, None)
        try:
            self._tell(f"{connection.getpeername()[0]}: {reason}")
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _tell(self, reason: str) -> None:
        if time.monotonic() >= self._told + TELL_AGAIN:
            self._told = time.monotonic()
            log.warning("a reader of the metrics got no answer: %s", reason)

    @property
    def address(self) -> tuple[str, int]:
        return self.server_name, self.server_port

    def stop(self) -> None:
        """Stop answering. Returns when the port is free."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def _endpoint(listen: str) -> tuple[str, int]:
    """The address to bind. A name is resolved, preferably to IPv4."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError("GD-311", f"metrics.listen = {listen!r} is not allowed", do='write "host:port", or "off"')
    host = "0.0.0.0" if host == "*" else host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise _unusable(listen, error) from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0]), int(port)


def _unusable(listen: str, error: OSError) -> HardwareError:
    return HardwareError(
        "GD-104",
        "metrics cannot be served there",
        seen=f"{listen}: {error.strerror or error}",
        do="set metrics.listen to an address of this host, or to off",
    )
