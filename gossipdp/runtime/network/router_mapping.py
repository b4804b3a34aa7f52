"""Keeps one port mapping of the router alive: asks for it, renews it, and removes it at the end. A thread of its own.

The thread may block for seconds. What it finds comes back through a queue; a descriptor becomes readable.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gossipdp.runtime.network.host_port import join_address
from gossipdp.runtime.network.nat_pmp import Mapping, RouterError

__all__ = ["Mapped", "RouterMapping", "Way"]

LIFETIME: Final = 7200.0
"""seconds asked for (RFC 6886 section 3.3); renewed after half of what is granted"""
AGAIN: Final = 600.0
"""seconds until a router that maps nothing is asked again"""
SHORTEST: Final = 30.0
GOODBYE: Final = 2.0
"""most seconds that the end waits until the mapping is removed"""


class Way(Protocol):
    """A protocol that routers speak. Its methods block and raise RouterError."""

    name: str

    def map(self, port: int, lifetime: float) -> Mapping: ...

    def unmap(self, port: int) -> None: ...


class Mapped(NamedTuple):
    """``host:port`` outside, and the protocol by which the router was asked."""

    address: str
    way: str


class RouterMapping:
    """The mapping of one port.

    Args:
        port: TCP port of this host.
        ways: protocols, tried in turn.
    """

    def __init__(self, port: int, ways: Sequence[Way]) -> None:
        self._port, self._ways = port, ways
        self._found: queue.SimpleQueue[Mapped | str] = queue.SimpleQueue()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipdp-router", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `collect` has something new."""
        return self._read.fileno()

    def collect(self) -> list[Mapped | str]:
        """What changed since the last call: a mapping, or the reason why there is none."""
        with contextlib.suppress(BlockingIOError):
            self._read.recv(64)
        found = []
        while not self._found.empty():
            found.append(self._found.get_nowait())
        return found

    def close(self) -> None:
        """Remove the mapping, and end the thread."""
        self._stop.set()
        self._thread.join(GOODBYE)
        self._read.close()
        self._write.close()

    def _run(self) -> None:
        told: Mapped | str = ""
        current: Way | None = None
        while not self._stop.is_set():
            current, found, pause = self._renew(current)
            if found != told:
                told = found
                self._found.put(found)
                with contextlib.suppress(OSError):
                    self._write.send(b"!")
            self._stop.wait(pause)
        if current is not None:
            with contextlib.suppress(RouterError):
                current.unmap(self._port)

    def _renew(self, current: Way | None) -> tuple[Way | None, Mapped | str, float]:
        """Ask by the `current` way, or by each: the way that worked, what to tell, and the seconds until next time."""
        reasons = []
        for way in self._ways if current is None else (current, *(each for each in self._ways if each is not current)):
            try:
                host, port, lifetime = way.map(self._port, LIFETIME)
                if ipaddress.ip_address(host).is_global:
                    return way, Mapped(join_address(host, port), way.name), max(SHORTEST, lifetime / 2)
                way.unmap(self._port)
                reasons.append(f"the router's own address {host} is not public: another router is before it")
            except (RouterError, ValueError) as error:
                reasons.append(str(error))
        return None, "; ".join(reasons), AGAIN
