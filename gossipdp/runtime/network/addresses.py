"""The address that other peers should dial: chosen with a reason, and doubted where it looks wrong.

Joining fails most often because a wrong interface was advertised. So the choice comes with a sentence for the operator.
Nothing is sent or bound here. Other peers find out whether they can dial the address (`reachability`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

import psutil

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.host_port import split_address

__all__ = ["advertised", "doubt"]

SEEDS_COMPARED: Final = 4
ANY: Final = ("*", "0.0.0.0", "::", "[::]")
_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def advertised(listen_host: str, port: int, seeds: Sequence[str]) -> tuple[str, str]:
    """``host:port`` to advertise, and one sentence on why.

    A host that listens on one address advertises it. A host that listens on all addresses advertises the one from which
    it would reach the first seed. Without a seed it takes its first address that is not loopback, public ones first.
    """
    if listen_host not in ANY:
        return _join(listen_host, port), "the address it listens on"
    for seed in seeds:
        host, seed_port = split_address(seed)
        source = _source_towards(host, seed_port)
        if source:
            return _join(source, port), f"the address from which it reaches {seed}"
    own = _own_addresses()
    if own:
        why = "its first public address" if own[0].is_global else "its first address; no seed to choose by"
        return _join(str(own[0]), port), why
    return _join("127.0.0.1", port), "loopback: this host has no other address"


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
            seen, f"set [network] advertise to auto or to {_join(min(leaves), port)}, if others can dial that"
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
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                parsed = ipaddress.ip_address(address.address.partition("%")[0])
                if not (parsed.is_loopback or parsed.is_link_local):
                    found.append(parsed)
    return sorted(found, key=lambda address: (not address.is_global, address.version, int(address)))


def _join(host: str, port: int) -> str:
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
