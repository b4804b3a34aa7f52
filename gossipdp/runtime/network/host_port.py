"""Addresses as operators write them: ``host:port`` and ``[v6]:port``."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from gossipdp.errors import ConfigError

__all__ = ["address_range", "join_address", "plain_ip", "split_address"]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ConfigError: the text is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and bare and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536) or (
        ":" in bare and bare == host
    ):
        raise ConfigError("usage", "an address is host:port, or [v6]:port", seen=repr(address[:90]))
    return bare, int(port)


def join_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_ip(address: str) -> str:
    """An IP address, IPv4 as such."""
    return address.removeprefix("::ffff:")


@lru_cache(1024)
def address_range(ip: str) -> str:
    """The /24 of an IPv4 address, or the /64 of an IPv6 one: what one host can easily have. Other text stays."""
    try:
        length = 24 if ipaddress.ip_address(ip).version == 4 else 64
        return str(ipaddress.ip_network((ip.partition("%")[0], length), strict=False))
    except ValueError:
        return ip
