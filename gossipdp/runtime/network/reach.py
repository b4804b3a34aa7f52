"""The order in which the addresses of one peer are dialled. Nothing is sent here.

An address of a private network comes first if this host is on a network of the same numbers. That network may be
another one all the same: the hello proves the identity, and the attempt is short. Then come global IPv6, public IPv4
and names, the rest, and relays. An address that worked comes before all others, except a relay.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import psutil

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import relay_of
from gossipdp.runtime.network.host_port import split_address

__all__ = ["Reach", "is_public", "own_networks"]

NETWORKS_HOLD: Final = 30.0
"""seconds for which the list of this host's networks stays valid"""
MAX_WORKED: Final = 4096
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def own_networks() -> list[Network]:
    """The networks of this host's interfaces, without loopback and single addresses."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6) and address.netmask:
                ip, mask = (ipaddress.ip_address(text.partition("%")[0]) for text in (address.address, address.netmask))
                network = ipaddress.ip_network(f"{ip}/{int(mask).bit_count()}", strict=False)
                if not ip.is_loopback and network.num_addresses > 1:
                    found.append(network)
    return found


def is_public(address: str) -> bool:
    """Whether ``host:port`` is a global IP address or a name."""
    ip = _ip_of(address)
    return ip is None or ip.is_global


class Reach:
    """Which address of a peer to dial first.

    Args:
        networks: the networks of this host's interfaces.
    """

    def __init__(self, networks: Callable[[], Iterable[Network]] = own_networks) -> None:
        self._read_networks = networks
        self._networks: list[Network] = []
        self._read_at = float("-inf")
        self._worked: dict[bytes, str] = {}
        """address at which each peer was met last, the newest last"""

    def order(self, peer: bytes, addresses: Sequence[str], now: float) -> list[str]:
        """`addresses` of `peer`, the one to dial first in front, each once."""
        if len(addresses) < 2:
            return list(addresses)
        worked = self._worked.get(peer)
        return sorted(
            dict.fromkeys(addresses), key=lambda each: (bool(relay_of(each)), each != worked, self._rank(each, now))
        )

    def near(self, address: str, now: float) -> bool:
        """Whether ``host:port`` is an IP address of a private network, and of a network of this host."""
        ip = _ip_of(address)
        if ip is None or ip.is_global or ip.is_loopback:
            return False
        if now >= self._read_at + NETWORKS_HOLD:
            self._networks, self._read_at = list(self._read_networks()), now
        return any(ip in network for network in self._networks)

    def remember(self, peer: bytes, address: str) -> None:
        """`peer` was met at `address`."""
        self._worked.pop(peer, None)
        self._worked[peer] = address
        if len(self._worked) > MAX_WORKED:
            del self._worked[next(iter(self._worked))]

    def _rank(self, address: str, now: float) -> int:
        if self.near(address, now):
            return 0
        if not is_public(address):
            return 3
        ip = _ip_of(address)
        return 1 if ip is not None and ip.version == 6 else 2


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address of ``host:port``; None for a name, or for text that is no address."""
    try:
        return ipaddress.ip_address(split_address(address)[0].partition("%")[0])
    except (ConfigError, ValueError):
        return None
