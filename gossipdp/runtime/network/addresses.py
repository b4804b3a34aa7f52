"""The addresses that other peers should dial: chosen with a reason, and doubted where they look wrong.

Joining fails most often because a wrong interface was advertised. So the choice comes with a sentence for the operator.
Nothing is sent or bound here. Other peers find out whether they can dial an address (`reachability`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import psutil

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.host_port import join_address, split_address
from gossipdp.runtime.network.port_maps import port_map

__all__ = ["MAX_ADVERTISED", "Choice", "choose", "doubt"]

MAX_ADVERTISED: Final = 4
"""addresses that one peer advertises"""
SEEDS_COMPARED: Final = 4
ANY: Final = ("*", "0.0.0.0", "::", "[::]")
DEFAULT_ROUTE: Final = ("192.0.2.1", 9)
"""an address of RFC 5737 that only the default route leads to; nothing is sent"""
SYS_NET: Final = Path("/sys/class/net")
IF_INET6: Final = Path("/proc/net/if_inet6")
FLEETING: Final = 0x01 | 0x20
"""IFA_F_TEMPORARY and IFA_F_DEPRECATED of linux/if_addr.h"""
_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Choice(NamedTuple):
    """Where other peers are told to dial this one.

    addresses: ``host:port``, best first; empty for a peer that only dials out.
    why: where the first address comes from.
    lacks: what keeps other peers from dialling this one and what to do about it, or "".
    """

    addresses: tuple[str, ...]
    why: str
    lacks: str = ""


def choose(listen_host: str, port: int, seeds: Sequence[str], environment: Mapping[str, str]) -> Choice:
    """The addresses to advertise for ``advertise = "auto"``.

    In a container of a marketplace the mapped address comes first. A host that listens on one address advertises it. A
    host that listens on all addresses takes first the one from which it would reach its first seed, then its public
    addresses, then its private ones. Without a seed the public ones come first.

    Args:
        listen_host: the host part of `[network] listen`.
        port: the port that this peer is bound to.
        seeds: ``host:port`` each.
        environment: variables of this host or container.
    """
    own, why = _own(listen_host, port, seeds)
    outside = port_map(port, environment)
    if outside is None:
        return Choice(own, why)
    if outside.address:
        # The private addresses of such a container mean nothing on other machines.
        public = [address for address in own if _is_global(split_address(address)[0])]
        return Choice(_first((outside.address, *public)), outside.why)
    return Choice(own, why, f"{outside.why}; {outside.do}")


def _own(listen_host: str, port: int, seeds: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Addresses of this host, without any port map, and where the first one comes from."""
    if listen_host not in ANY:
        return (join_address(listen_host, port),), "the address it listens on"
    found = [ip for ip in _candidates(seeds) if ip.version == 4 or listen_host != "0.0.0.0"]
    own = _first(join_address(str(ip), port) for ip in found)
    for seed in seeds:
        source = _source_towards(*split_address(seed))
        if source and source not in _fleeting():
            first, why = join_address(source, port), f"the address from which it reaches {seed}"
            return (first,) if ipaddress.ip_address(source).is_loopback else _first((first, *own)), why
    if own:
        return own, "its first public address" if found[0].is_global else "its first address; no seed to choose by"
    return (join_address("127.0.0.1", port),), "loopback: this host has no other address"


def _first(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first addresses, each once, with one IPv6 address: others of the same interface add no way to this host."""
    kept: list[str] = []
    for address in dict.fromkeys(addresses):
        if not (address.startswith("[") and any(other.startswith("[") for other in kept)):
            kept.append(address)
    return tuple(kept[:MAX_ADVERTISED])


def doubt(address: str, listen_host: str, seeds: Sequence[str]) -> ConfigError | None:
    """The error GD-103, not raised, if other peers can hardly dial `address`; else None.

    This host cannot know what a router in front of it forwards, so a public address is believed.
    """
    if not address:
        return None
    host, port = split_address(address)
    mine, own = _resolved(host), _own_addresses()
    if not mine:
        return _doubt(f"{host} does not resolve here", "set [network] advertise to a name or address that others know")
    listens = _resolved(listen_host.strip("[]")) if listen_host not in ANY else []
    if listens and not set(mine) & set(listens) and set(mine) & set(own):
        seen = f"{address} is advertised, and this peer listens on {listen_host} only"
        return _doubt(seen, f"set [network] listen to tcp://*:{port}, or advertise to the address it listens on")
    others = []
    for seed in seeds[:SEEDS_COMPARED]:
        found = [target for target in _resolved(split_address(seed)[0]) if target not in (*mine, *own)]
        others += [(seed, target) for target in found[:1] if not target.is_loopback]
    for seed, target in others:
        kind = _kind(mine[0])
        if mine[0].is_loopback or (target.is_global and not any(ip.is_global for ip in mine)):
            seen = f"{address} is {kind}, and the seed {seed} is {_kind(target)}"
            do = (
                f"set [network] advertise to where others reach TCP port {port} of this host, or to none if they cannot"
            )
            return _doubt(seen, do)
    leaves = {_source_towards(*split_address(seed)) for seed, _ in others} - {""}
    if leaves and set(mine) & set(own) and not leaves & {str(ip) for ip in mine}:
        seen = f"{address} belongs to another interface than {min(leaves)}, from which this host reaches {others[0][0]}"
        return _doubt(
            seen, f"set [network] advertise to auto or to {join_address(min(leaves), port)}, if others can dial that"
        )
    return None


def _doubt(seen: str, do: str) -> ConfigError:
    return ConfigError("GD-103", "others will hardly reach this peer where it says it is", seen=seen, do=do)


def _kind(ip: _Ip) -> str:
    return "loopback" if ip.is_loopback else "a public address" if ip.is_global else "a private address"


def _resolved(host: str) -> list[_Ip]:
    """The IP addresses of `host`, a name or an address, on this host."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found))


def _source_towards(host: str, port: int) -> str:
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


def _own_addresses() -> list[_Ip]:
    """This host's addresses, public ones first, without loopback and link-local ones."""
    return [ip for _, ip in _interfaces()]


def _interfaces() -> list[tuple[str, _Ip]]:
    """(interface, address), in the order of `_own_addresses`."""
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                parsed = ipaddress.ip_address(address.address.partition("%")[0])
                if not (parsed.is_loopback or parsed.is_link_local):
                    found.append((name, parsed))
    return sorted(found, key=lambda pair: (not pair[1].is_global, pair[1].version, int(pair[1])))


def _candidates(seeds: Sequence[str]) -> list[_Ip]:
    """The addresses of this host that other hosts may reach.

    A bridge without a route to other hosts belongs to this host's own containers. An IPv6 address that expires soon is
    left out, unless there is no other address.
    """
    targets = [*(split_address(seed) for seed in seeds[:SEEDS_COMPARED]), DEFAULT_ROUTE]
    leaves = {_source_towards(*target) for target in targets}
    found = [ip for name, ip in _interfaces() if str(ip) in leaves or not (SYS_NET / name / "bridge").exists()]
    fleeting = _fleeting()
    return [ip for ip in found if str(ip) not in fleeting] or found


def _fleeting() -> set[str]:
    """IPv6 addresses of this host that are temporary (RFC 8981) or deprecated."""
    try:
        lines = IF_INET6.read_text().split("\n")
    except OSError:
        return set()
    fields = [line.split() for line in lines if line]
    return {str(ipaddress.ip_address(bytes.fromhex(each[0]))) for each in fields if int(each[4], 16) & FLEETING}


def _is_global(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False
