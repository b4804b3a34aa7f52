"""Which addresses of this host other peers are told to dial. It imports nothing slow: `up` shows them too."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from gossipdp.config import AUTO, Config
from gossipdp.runtime.network.addresses import Choice, choose
from gossipdp.runtime.network.host_port import split_address
from peers import home as homes

__all__ = ["addresses_to_advertise", "all_private", "listen_host", "listen_port"]


def addresses_to_advertise(config: Config, port: int, environment: Mapping[str, str]) -> Choice:
    """The addresses that other peers dial, and the reason for them. A peer that only dials out has none.

    Args:
        config: the configuration.
        port: the port that the peer is bound to; 0 for none.
        environment: variables of this host or container.
    """
    chosen = config.network.advertise
    if port == 0:
        return Choice((), "[network] listen is off")
    if chosen == ("none",):
        return Choice((), "[network] advertise is none")
    if chosen != (AUTO,):
        return Choice(tuple(homes.with_port(address, port) for address in chosen), "as configured")
    return choose(listen_host(config), port, config.network.seeds, environment)


def listen_host(config: Config) -> str:
    return config.network.listen.removeprefix("tcp://").rpartition(":")[0]


def listen_port(config: Config) -> int | None:
    """The configured port. None: the peer takes a free port at its start. 0: it does not listen."""
    if config.network.listen == "off":
        return 0
    return int(config.network.listen.rpartition(":")[2]) or None


def all_private(addresses: Iterable[str]) -> str:
    """ "loopback" or "private" if every address is of that kind, else "". A host name is believed to be public."""
    try:
        found = [ipaddress.ip_address(split_address(address)[0]) for address in addresses]
    except ValueError:
        return ""
    if not found or any(ip.is_global for ip in found):
        return ""
    return "loopback" if all(ip.is_loopback for ip in found) else "private"
