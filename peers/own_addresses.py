"""A service of the I/O loop: other peers are told where this host can be dialled, whenever that changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gossipdp.config import AUTO, Config
from gossipdp.runtime.network.address_watch import AddressWatch
from gossipdp.runtime.network.addresses import MAX_ADVERTISED, Choice
from gossipdp.runtime.network.nat_pmp import NatPmp, default_gateway
from gossipdp.runtime.network.reach import is_public
from gossipdp.runtime.network.router_mapping import Mapped, RouterMapping, Way
from gossipdp.runtime.network.upnp import Upnp
from gossipdp.runtime.node import Node
from peers import invites
from peers.advertising import addresses_to_advertise

__all__ = ["OwnAddresses", "wants_router"]

log = logging.getLogger("gossipdp.daemon")


def wants_router(config: Config, choice: Choice, port: int) -> bool:
    """Whether to ask the router: the operator wants it, and no public IPv4 address is known."""
    public = any(is_public(address) and not address.startswith("[") for address in choice.addresses)
    return config.network.nat == AUTO and config.network.advertise == (AUTO,) and port != 0 and not public


def ways() -> list[Way]:
    """The protocols by which a router is asked."""
    gateway = default_gateway()
    return [*([NatPmp(gateway)] if gateway else []), Upnp()]


class OwnAddresses:
    """Tells the peer of other addresses of this host, and of the port that its router maps.

    Args:
        choice: the addresses at the start, without the router.
        environment: variables of this host or container.
        watch: looks for other addresses.
        mapping: makes the mapping of a port, if the router is asked.
    """

    def __init__(
        self,
        node: Node,
        home: Path,
        config: Config,
        choice: Choice,
        port: int,
        environment: Mapping[str, str] = {},
        watch: Callable[[Callable[[], Choice], Choice], AddressWatch] = AddressWatch,
        mapping: Callable[[int, Sequence[Way]], RouterMapping] = RouterMapping,
    ) -> None:
        self._node, self._home, self._config, self._choice = node, home, config, choice
        self._watch = watch(lambda: addresses_to_advertise(config, port, environment), choice)
        self._mapping = mapping(port, ways()) if wants_router(config, choice, port) else None
        self._mapped: Mapped | None = None

    def filenos(self) -> Sequence[int]:
        return [self._watch.fileno(), *([] if self._mapping is None else [self._mapping.fileno()])]

    def tick(self, now: float) -> None:
        pass

    def close(self) -> None:
        self._watch.close()
        if self._mapping is not None:
            self._mapping.close()

    def handle(self, fd: int) -> None:
        if fd == self._watch.fileno():
            for choice in self._watch.collect():
                log.info("this host has other addresses now: %s", ", ".join(choice.addresses) or "none")
                self._choice = choice
                self._advertise()
        elif self._mapping is not None:
            for found in self._mapping.collect():
                self._router_says(found)

    def _router_says(self, found: Mapped | str) -> None:
        if isinstance(found, Mapped):
            log.info("the router maps %s to this peer (%s)", found.address, found.way)
            self._mapped = found
            self._advertise()
        else:
            self._node.notice("GD-103", f"others can probably not reach this peer: the router maps no port: {found}")
            if self._mapped is not None:
                self._mapped = None
                self._advertise()

    def _advertise(self) -> None:
        addresses, why = self._choice.addresses, self._choice.why
        if self._mapped is not None:
            addresses = (self._mapped.address, *addresses)[:MAX_ADVERTISED]
            why = f"the port that the router maps, asked by {self._mapped.way}"
        self._node.advertise(addresses, why)
        invites.renew_invite(self._home, addresses, (), self._config)
