"""UPnP Internet Gateway Device: asks the router to map a TCP port, through miniupnpc of the extra `nat`. It blocks."""

from __future__ import annotations

import contextlib
import ipaddress
import random
from typing import Any, Final

from gossipdp.runtime.network.nat_pmp import Mapping, RouterError

__all__ = ["Upnp"]

DISCOVERY: Final = 2000
"""milliseconds for answers of routers"""
OTHERS: Final = 3
"""other outside ports that are tried if the first one is taken"""
LABEL: Final = "gossipdp"
PERMANENT: Final = "OnlyPermanentLeasesSupported"
"""error 725 of a router whose mappings never end by themselves"""


class Upnp:
    """The first router that answers.

    Args:
        client: miniupnpc.UPnP(), or None to make one.
    """

    name = "UPnP"

    def __init__(self, client: Any = None) -> None:
        self._client, self._outside = client, 0

    def map(self, port: int, lifetime: float) -> Mapping:
        """Map a TCP port of the router to `port` of this host, for at most `lifetime` seconds.

        Raises:
            RouterError: it did not.
        """
        client = self._found()
        others = [random.randint(20_000, 60_000) for _ in range(OTHERS)]
        lease, why = round(lifetime), "it refused"
        for outside in [self._outside] if self._outside else [port, port, *others]:
            try:
                if client.addportmapping(outside, "TCP", client.lanaddr, port, LABEL, "", lease):
                    self._outside = outside
                    return Mapping(client.externalipaddress(), outside, lifetime)
            except Exception as error:  # of a C library, without a type of its own
                why = str(error)
                lease = 0 if PERMANENT in why else lease
        self._outside = 0
        raise RouterError(f"the UPnP router did not map the port: {why}")

    def unmap(self, port: int) -> None:
        """Remove the mapping."""
        with contextlib.suppress(Exception):
            self._client.deleteportmapping(self._outside or port, "TCP")

    def outside_address(self) -> str:
        """The router's outside address. Nothing is mapped. Raises RouterError."""
        client = self._found()
        try:
            address = ipaddress.ip_address(client.externalipaddress())
        except Exception:  # of a C library, or of text that is no address
            raise RouterError("the UPnP router does not report its outside address") from None
        if address.is_unspecified:
            raise RouterError("the UPnP router has no connection")
        return str(address)

    def _found(self) -> Any:
        """A client that knows the router."""
        if self._outside:
            return self._client
        if self._client is None:
            try:
                import miniupnpc
            except ImportError:
                raise RouterError("UPnP needs miniupnpc: pip install 'gossipdp[nat]'") from None
            self._client = miniupnpc.UPnP()
        self._client.discoverdelay = DISCOVERY
        try:
            self._client.discover()
            self._client.selectigd()
        except Exception:
            raise RouterError("no UPnP router answers") from None
        return self._client
