"""The addresses that other peers should dial: chosen with a reason, and doubted where they look wrong.

Joining fails most often because a wrong interface was advertised. So the choice comes with a sentence for the operator.
Nothing is sent or bound here. Other peers find out whether they can dial an address (`reachability`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from gossipdp.errors import ConfigError
from gossipdp.runtime.network import reach
from gossipdp.runtime.network.host_port import join_address, split_address
from gossipdp.runtime.network.port_maps import port_map
from gossipdp.runtime.network.reach import DEFAULT_ROUTE, VPN_RANGES, Ip, vpn_range

__all__ = ["MAX_ADVERTISED", "Choice", "choose", "doubt"]

MAX_ADVERTISED: Final = 4
"""addresses that one peer advertises"""
SEEDS_COMPARED: Final = 4
ANY: Final = ("*", "0.0.0.0", "::", "[::]")
SYS_NET: Final = Path("/sys/class/net")
IF_INET6: Final = Path("/proc/net/if_inet6")
FLEETING: Final = 0x01 | 0x20
"""IFA_F_TEMPORARY and IFA_F_DEPRECATED of linux/if_addr.h"""
NO_LINK_LAYER: Final = "65534"
"""ARPHRD_NONE of linux/if_arp.h: the interfaces of WireGuard, and of Tailscale, Nebula and others by tun"""


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
    addresses, then those of VPNs and its other private ones. Without a seed the public ones come first.

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
        # The private addresses of such a container mean nothing on other machines, except those of a VPN.
        vpn = {str(ip) for name, ip in _interfaces() if _is_vpn(name, ip)}
        hosts = {address: split_address(address)[0] for address in own}
        known = [address for address, host in hosts.items() if host in vpn or _is_global(host)]
        return Choice(_first((outside.address, *known)), outside.why)
    return Choice(own, why, f"{outside.why}; {outside.do}")


def _own(listen_host: str, port: int, seeds: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Addresses of this host, without any port map, and where the first one comes from."""
    if listen_host not in ANY:
        return (join_address(listen_host, port),), "the address it listens on"
    found = [ip for ip in _candidates(seeds) if ip.version == 4 or listen_host != "0.0.0.0"]
    own = _first(join_address(str(ip), port) for ip in found)
    for seed in seeds:
        source = reach.source_towards(*split_address(seed))
        if source and source not in _fleeting():
            first, why = join_address(source, port), f"the address from which it reaches {seed}"
            return (first,) if ipaddress.ip_address(source).is_loopback else _first((first, *own)), why
    if own:
        return own, "its first public address" if found[0].is_global else "its first address, because no seed is known"
    return (join_address("127.0.0.1", port),), "loopback: this host has no other address"


def _first(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first addresses, each once, with one global IPv6 address and one of a private network.

    Others of the same kind add no way to this host.
    """
    kept: list[str] = []
    kinds = set()
    for address in dict.fromkeys(addresses):
        kind = _is_global(split_address(address)[0]) if address.startswith("[") else address
        if kind not in kinds:
            kinds.add(kind)
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
        seen = f"{address} is advertised, but this peer listens only on {listen_host}"
        return _doubt(seen, f"set [network] listen to tcp://*:{port}, or set advertise to the address it listens on")
    others = []
    for seed in seeds[:SEEDS_COMPARED]:
        found = [target for target in _resolved(split_address(seed)[0]) if target not in (*mine, *own)]
        others += [(seed, target) for target in found[:1] if not target.is_loopback]
    shared = any(_share_vpn(mine, target) for _, target in others)
    for seed, target in others:
        kind = _kind(mine[0])
        if mine[0].is_loopback or (target.is_global and not any(ip.is_global for ip in mine) and not shared):
            seen = f"{address} is {kind}, and the seed {seed} is {_kind(target)}"
            do = (
                f"set [network] advertise to the address at which others reach TCP port {port} of this host, or to none"
                " if they cannot"
            )
            return _doubt(seen, do)
    leaves = {reach.source_towards(*split_address(seed)) for seed, _ in others} - {""}
    if leaves and set(mine) & set(own) and not leaves & {str(ip) for ip in mine}:
        seen = f"{address} belongs to another interface than {min(leaves)}, from which this host reaches {others[0][0]}"
        return _doubt(
            seen, f"set [network] advertise to auto or to {join_address(min(leaves), port)}, if others can dial that"
        )
    return None


def _doubt(seen: str, do: str) -> ConfigError:
    return ConfigError("GD-103", "others can probably not reach this peer at its advertised address", seen=seen, do=do)


def _share_vpn(mine: Sequence[Ip], target: Ip) -> bool:
    """Whether a private network connects one of `mine` and `target`.

    Either both are of a range of VPNs, or another route than the default one leads from there to `target`.
    """
    if target.is_global:
        return False
    ranges = {vpn_range(ip) for ip in mine} - {None}
    return vpn_range(target) in ranges or reach.source_apart(target) in map(str, mine)


def _kind(ip: Ip) -> str:
    if ip in VPN_RANGES[0]:
        return "an address of a VPN or of carrier-grade NAT"
    return "loopback" if ip.is_loopback else "a public address" if ip.is_global else "a private address"


def _resolved(host: str) -> list[Ip]:
    """The IP addresses of `host`, a name or an address, on this host."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found))


def _own_addresses() -> list[Ip]:
    """This host's addresses without loopback and link-local ones: public ones first, then those of VPNs."""
    return [ip for _, ip in _interfaces()]


def _interfaces() -> list[tuple[str, Ip]]:
    """(interface, address), in the order of `_own_addresses`."""
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                parsed = ipaddress.ip_address(address.address.partition("%")[0])
                if not (parsed.is_loopback or parsed.is_link_local):
                    found.append((name, parsed))
    return sorted(found, key=lambda each: (not each[1].is_global, each[1].version, not _is_vpn(*each), int(each[1])))


def _is_vpn(name: str, ip: Ip) -> bool:
    """Whether `ip`, a private address of the interface `name`, is probably one of a network across sites."""
    if ip.is_global:
        return False
    try:
        return vpn_range(ip) is not None or (SYS_NET / name / "type").read_text().strip() == NO_LINK_LAYER
    except OSError:
        return False


def _candidates(seeds: Sequence[str]) -> list[Ip]:
    """The addresses of this host that other hosts may reach.

    A bridge without a route to other hosts belongs to this host's own containers. An IPv6 address that expires soon is
    left out, unless there is no other address. A private one adds nothing to a global one of the same interface.
    """
    targets = [*(split_address(seed) for seed in seeds[:SEEDS_COMPARED]), DEFAULT_ROUTE[4]]
    leaves = {reach.source_towards(*target) for target in targets}
    outward = [each for each in _interfaces() if str(each[1]) in leaves or not (SYS_NET / each[0] / "bridge").exists()]
    fleeting = _fleeting()
    found = [each for each in outward if str(each[1]) not in fleeting] or outward
    wide = {name for name, ip in found if ip.version == 6 and ip.is_global}
    return [ip for name, ip in found if ip.version == 4 or ip.is_global or name not in wide]


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
