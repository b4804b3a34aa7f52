"""Which address other peers should dial: chosen, explained, doubted where it looks wrong, and never guessed silently.

Joining fails most often because a wrong interface was advertised; so what is chosen, and why, is said. Only
addresses are looked at here: nothing is sent and nothing bound. Whether others can dial it is found out by them
(`reachability`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

import psutil

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.identity import split_address

__all__ = ["advertised", "doubt"]

SEEDS_COMPARED: Final = 4
ANY: Final = ("*", "0.0.0.0", "::", "[::]")
_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def advertised(listen_host: str, port: int, seeds: Sequence[str]) -> tuple[str, str]:
    """``host:port`` to advertise, and one sentence on why.

    A host that listens on one address advertises that. One that listens on all advertises the address from which it
    would reach the first seed, else its first address that is not loopback, public ones first.
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
    """GD-103 if `address` is hardly where other peers can dial this one, as far as this host can tell; not raised.

    It cannot tell what a router in front of it forwards: a public address is believed.
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
    """The addresses that `host`, a name or an address, stands for here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found))


def _source_towards(host: str, port: int) -> str:
    """The local address of a UDP socket connected there; connecting one sends nothing."""
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
