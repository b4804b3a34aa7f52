"""A small HTTP server on a thread of its own: what answers scrapes. It knows no metric, only a WSGI application.

Standard library only. Reads are all it is for: whatever it serves must change nothing and needs no password, and by
default it is bound to loopback.
"""

from __future__ import annotations

import errno
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from gossipdp.errors import ConfigError, HardwareError

__all__ = ["WebServer"]

PORTS: Final = 100
"""tried from the one asked for, upwards"""


class _Request(WSGIRequestHandler):
    timeout = 10
    """seconds a reader may take to send its request"""

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is no news."""


class WebServer(ThreadingMixIn, WSGIServer):
    """The standard library's, without its look-up of the host's own name, which may take seconds.

    Args:
        listen: "host:port", "[v6]:port", "*:port". If the port is busy the next free one is taken; 0 takes any.

    Raises:
        ConfigError: GD-311, `listen` is no address.
        HardwareError: GD-104, no port is free, or the address is not this host's.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: str, application: WSGIApplication) -> None:
        host, port = _endpoint(listen)
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
        self._thread = threading.Thread(target=self.serve_forever, name="web", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    @property
    def address(self) -> tuple[str, int]:
        return self.server_name, self.server_port

    def stop(self) -> None:
        """Take no more requests; returns when the port is free."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def _endpoint(listen: str) -> tuple[str, int]:
    """The address to bind; a name is resolved, an IPv4 address preferred."""
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
