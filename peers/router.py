"""Advertises the port that the router of this network maps to this peer (`[network] nat`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from gossipdp.config import AUTO, Config
from gossipdp.runtime.network.addresses import MAX_ADVERTISED, Choice
from gossipdp.runtime.network.nat_pmp import NatPmp, default_gateway
from gossipdp.runtime.network.reach import is_public
from gossipdp.runtime.network.router_mapping import Mapped, RouterMapping, Way
from gossipdp.runtime.network.upnp import Upnp
from gossipdp.runtime.node import Node
from peers import invites

__all__ = ["Router", "wants_router"]

log = logging.getLogger("gossipdp.daemon")


def wants_router(config: Config, choice: Choice, port: int) -> bool:
    """Whether to ask the router: the operator wants it, and no public IPv4 address is known."""
    public = any(is_public(address) and not address.startswith("[") for address in choice.addresses)
    return config.network.nat == AUTO and config.network.advertise == (AUTO,) and port != 0 and not public


def ways() -> list[Way]:
    """The protocols by which a router is asked."""
    gateway = default_gateway()
    return [*([NatPmp(gateway)] if gateway else []), Upnp()]


class Router:
    """A service of the I/O loop: passes on what the router says.

    Args:
        choice: the addresses without the router.
        mapping: makes the mapping of a port.
    """

    def __init__(
        self,
        node: Node,
        home: Path,
        config: Config,
        choice: Choice,
        port: int,
        mapping: Callable[[int, Sequence[Way]], RouterMapping] = RouterMapping,
    ) -> None:
        self._node, self._home, self._config, self._choice = node, home, config, choice
        self._mapping, self._mapped = mapping(port, ways()), False

    def filenos(self) -> Sequence[int]:
        return [self._mapping.fileno()]

    def close(self) -> None:
        self._mapping.close()

    def handle(self, fd: int) -> None:
        for found in self._mapping.collect():
            if isinstance(found, Mapped):
                self._mapped = True
                addresses = (found.address, *self._choice.addresses)[:MAX_ADVERTISED]
                why = f"the port that the router maps, asked by {found.way}"
                log.info("the router maps %s to this peer (%s)", found.address, found.way)
                self._advertise(addresses, why)
            else:
                self._node.notice("GD-103", f"others will hardly reach this peer: the router maps no port: {found}")
                if self._mapped:
                    self._mapped = False
                    self._advertise(self._choice.addresses, self._choice.why)

    def _advertise(self, addresses: Sequence[str], why: str) -> None:
        self._node.advertise(addresses, why)
        invites.renew_invite(self._home, addresses, (), self._config)
