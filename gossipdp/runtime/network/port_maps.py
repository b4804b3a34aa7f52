"""Port maps of GPU marketplaces, read from the variables that they set in a rented container.

A marketplace gives a container a share of a public address: a TCP port inside is reached at another port outside.
Sources: docs.vast.ai, "Networking & Ports"; docs.runpod.io, "Expose ports" and "Environment variables". Nothing here
may open a socket or read the environment of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.host_port import join_address, split_address

__all__ = ["PREFIXES", "PortMap", "port_map"]

IDENTITY: Final = 70_000
"""A port from here on stands for "the same port inside and outside". Its variable holds the number of both."""
MAX_SHOWN: Final = 8


class _Marketplace(NamedTuple):
    name: str
    present: str
    """variable that is set in every container of this marketplace"""
    host: str
    """variable with the public address"""
    ports: str
    """prefix of the variables with the outside ports; the inside port follows"""
    opens: str
    """what the operator does to map a port"""


_MARKETPLACES: Final = (
    _Marketplace(
        "Vast.ai",
        "VAST_CONTAINERLABEL",
        "PUBLIC_IPADDR",
        "VAST_TCP_PORT_",
        'add "-p {port}:{port}" to the Docker options of the template, and rent a new instance with it',
    ),
    _Marketplace(
        "RunPod",
        "RUNPOD_POD_ID",
        "RUNPOD_PUBLIC_IP",
        "RUNPOD_TCP_PORT_",
        'add {port} to "Expose TCP Ports" of the pod (Edit Pod, or its template); the pod needs a public IP',
    ),
)
PREFIXES: Final = ("PUBLIC_IPADDR", "VAST_", "RUNPOD_")
"""prefixes of all variables that `port_map` reads"""


class PortMap(NamedTuple):
    """What a marketplace maps to this peer's port.

    address: ``host:port`` outside, or "" if the port is not mapped.
    why: which map it is, or why there is none.
    do: what opens the port, or "".
    """

    address: str
    why: str
    do: str = ""


def port_map(port: int, environment: Mapping[str, str]) -> PortMap | None:
    """Where the TCP port `port` of this container is reached from outside.

    Args:
        port: inside the container.
        environment: variables of the container.

    Returns:
        None outside the marketplaces that are known here.
    """
    for place in _MARKETPLACES:
        maps = {
            key.removeprefix(place.ports): value.strip()
            for key, value in environment.items()
            if key.startswith(place.ports)
        }
        if maps or place.present in environment:
            return _found(place, port, environment.get(place.host, "").strip(), maps)
    return None


def _found(place: _Marketplace, port: int, host: str, maps: Mapping[str, str]) -> PortMap:
    same = any(inside.isdecimal() and int(inside) >= IDENTITY and value == str(port) for inside, value in maps.items())
    outside = str(port) if same else maps.get(str(port), "")
    do = place.opens.format(port=port)
    if not outside:
        mapped = ", ".join(sorted(maps, key=lambda text: (len(text), text))[:MAX_SHOWN]) or "none"
        return PortMap("", f"{place.name} maps no outside port to TCP port {port} (mapped ports: {mapped})", do)
    if not host:
        return PortMap("", f"{place.name} set no {place.host}: this container has no public address", do)
    try:
        address = join_address(host, outside)
        split_address(address)
    except ConfigError:
        return PortMap("", f"{place.name} set {place.host}={host!r} and port {outside!r}, which is not an address", do)
    return PortMap(address, f"the port map of {place.name} for TCP port {port}")
