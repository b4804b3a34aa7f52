"""Keeps one port mapping of the router alive: asks for it, renews it, and removes it at the end."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gossipdp.runtime.network.host_port import join_address
from gossipdp.runtime.network.nat_pmp import Mapping, RouterError
from gossipdp.runtime.network.watch import Watch

__all__ = ["Mapped", "RouterMapping", "Way"]

LIFETIME: Final = 7200.0
"""seconds asked for (RFC 6886 section 3.3); renewed after half of what is granted"""
AGAIN: Final = 600.0
"""seconds until a router that maps nothing is asked again"""
SHORTEST: Final = 30.0


class Way(Protocol):
    """A protocol that routers speak. Its methods block and raise RouterError."""

    name: str

    def map(self, port: int, lifetime: float) -> Mapping: ...

    def unmap(self, port: int) -> None: ...


class Mapped(NamedTuple):
    """``host:port`` outside, and the protocol by which the router was asked."""

    address: str
    way: str


class RouterMapping(Watch[Mapped | str]):
    """The mapping of one port. It finds a mapping, or the reason why there is none. `close` removes the mapping.

    Args:
        port: TCP port of this host.
        ways: protocols, tried in turn.
    """

    def __init__(self, port: int, ways: Sequence[Way]) -> None:
        self._port, self._ways = port, ways
        super().__init__("gossipdp-router")

    def _run(self) -> None:
        told: Mapped | str = ""
        current: Way | None = None
        while not self._stop.is_set():
            current, found, pause = self._renew(current)
            if found != told:
                told = found
                self._tell(found)
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
