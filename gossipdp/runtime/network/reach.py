"""The order in which the addresses of one peer are dialled, and what this host's routes say of them. Nothing is sent.

An address of a private network comes first if this host is on a network of the same numbers, or has a route of its own
there, as into a VPN. That network may be another one all the same: the hello proves the identity, and the attempt is
short. Then come global IPv6, public IPv4 and names, ranges of VPNs, the rest, and relays. An address that worked comes
before all others, except a relay.
"""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import psutil

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import relay_of
from gossipdp.runtime.network.host_port import split_address

__all__ = [
    "DEFAULT_ROUTE",
    "VPN_RANGES",
    "Reach",
    "far_network",
    "is_public",
    "own_networks",
    "source_apart",
    "source_towards",
    "vpn_range",
]

NETWORKS_HOLD: Final = 30.0
"""seconds for which the list of this host's networks stays valid"""
MAX_WORKED: Final = 4096
Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
VPN_RANGES: Final[tuple[Network, ...]] = (
    ipaddress.ip_network("100.64.0.0/10"),
    ipaddress.ip_network("fd7a:115c:a1e0::/48"),
)
"""The ranges of Tailscale and Headscale. The first is shared address space (RFC 6598): carriers translate it, too."""
DEFAULT_ROUTE: Final = {4: ("192.0.2.1", 9), 6: ("2001:db8::1", 9)}
"""addresses for documentation (RFC 5737, RFC 3849), to which only the default route leads; nothing is sent"""


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


def source_towards(host: str, port: int) -> str:
    """The local address of a UDP socket connected there, or "". Connecting sends nothing."""
    try:
        for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
            except OSError:
                continue
    except (OSError, UnicodeError):
        pass
    return ""


def source_apart(ip: Ip) -> str:
    """The local address from which another route than the default one leads to `ip`, or ""."""
    host, port = DEFAULT_ROUTE[ip.version]
    source = source_towards(str(ip), port)
    return "" if source == source_towards(host, port) else source


def vpn_range(ip: Ip) -> Network | None:
    """That of `VPN_RANGES` to which `ip` belongs."""
    return next((each for each in VPN_RANGES if ip in each), None)


def is_public(address: str) -> bool:
    """Whether ``host:port`` is a global IP address or a name."""
    ip = _ip_of(address)
    return ip is None or ip.is_global


def far_network(address: str) -> str:
    """The network of ``host:port`` that reaches hosts elsewhere: "IPv4", "IPv6", or a range of VPNs. "" for others."""
    if is_public(address):
        return "IPv6" if address.startswith("[") else "IPv4"
    ip = _ip_of(address)
    return str((ip and vpn_range(ip)) or "")


class Reach:
    """Which address of a peer to dial first.

    Args:
        networks: the networks of this host's interfaces.
        apart: the local address from which another route than the default one leads to an address, or "".
    """

    def __init__(
        self, networks: Callable[[], Iterable[Network]] = own_networks, apart: Callable[[Ip], str] = source_apart
    ) -> None:
        self._read_networks, self._apart = networks, apart
        self._networks: list[Network] = []
        self._read_at = float("-inf")
        self._worked: dict[bytes, str] = {}
        """address at which each peer was met last, the newest last"""
        self._avoided: dict[tuple[bytes, str], float] = {}
        """(peer, address through a relay) -> until when it is dialled last, the newest last"""

    def order(self, peer: bytes, addresses: Sequence[str], now: float) -> list[str]:
        """`addresses` of `peer`, the one to dial first in front, each once."""
        if len(addresses) < 2:
            return list(addresses)
        worked = self._worked.get(peer)

        def key(address: str) -> tuple[bool, bool, bool, int]:
            avoided = now < self._avoided.get((peer, address), -math.inf)
            return bool(relay_of(address)), avoided, address != worked, self._rank(address, now)

        return sorted(dict.fromkeys(addresses), key=key)

    def avoid(self, peer: bytes, address: str, until: float) -> None:
        """A link with `peer` through a relay, at `address`, was lost. The other relay comes first until then."""
        self._avoided.pop((peer, address), None)
        self._avoided[peer, address] = until
        if len(self._avoided) > MAX_WORKED:
            del self._avoided[next(iter(self._avoided))]

    def near(self, address: str, now: float) -> bool:
        """Whether ``host:port`` is an IP address of a private network that this host is on, or has a route into."""
        ip = _ip_of(address)
        if ip is None or ip.is_global or ip.is_loopback:
            return False
        if now >= self._read_at + NETWORKS_HOLD:
            self._networks, self._read_at = list(self._read_networks()), now
        # An interface of a VPN often has a single address, without a network, and routes to the others.
        return any(ip in network for network in self._networks) or self._apart(ip) != ""

    def remember(self, peer: bytes, address: str) -> None:
        """`peer` was met at `address`."""
        self._worked.pop(peer, None)
        self._worked[peer] = address
        if len(self._worked) > MAX_WORKED:
            del self._worked[next(iter(self._worked))]

    def _rank(self, address: str, now: float) -> int:
        if self.near(address, now):
            return 0
        ip = _ip_of(address)
        if ip is None or ip.is_global:
            return 1 if ip is not None and ip.version == 6 else 2
        # A proxy may lead into a VPN that no route of this host does.
        return 3 if vpn_range(ip) is not None else 4


def _ip_of(address: str) -> Ip | None:
    """The IP address of ``host:port``; None for a name, or for text that is no address."""
    try:
        return ipaddress.ip_address(split_address(address)[0].partition("%")[0])
    except (ConfigError, ValueError):
        return None
