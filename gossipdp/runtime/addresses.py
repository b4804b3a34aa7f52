"""Which address other peers should dial: chosen, explained, and never guessed silently.

Joining fails most often because a wrong interface was advertised; so what is chosen, and why, is said. Only
addresses are looked at here: nothing is sent and nothing bound.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil

from gossipdp.runtime.identity import split_address

__all__ = ["advertised"]


def advertised(listen_host: str, port: int, seeds: Sequence[str]) -> tuple[str, str]:
    """``host:port`` to advertise, and one sentence on why.

    A host that listens on one address advertises that. One that listens on all advertises the address from which it
    would reach the first seed, else its first address that is not loopback, public ones first.
    """
    if listen_host not in ("*", "0.0.0.0", "::", "[::]"):
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
    except OSError:
        pass
    return ""


def _own_addresses() -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
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
