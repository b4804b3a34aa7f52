"""NAT Port Mapping Protocol (RFC 6886): asks the router of a private network to map a TCP port. It blocks.

Twelve bytes each way over UDP, so no library is needed. Only the default gateway is asked, and only its answers count.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Mapping", "NatPmp", "RouterError", "default_gateway"]

SERVER_PORT: Final = 5351
FIRST_TIMEOUT: Final = 0.25
"""seconds for the first answer; it doubles with each of `TRIES` (section 3.1)"""
TRIES: Final = 5
READS: Final = 8
"""datagrams read for one try"""
ROUTES: Final = Path("/proc/net/route")
ADDRESS, MAP_TCP, ANSWER = 0, 2, 128
RESULTS: Final = {
    1: "unsupported version",
    2: "not authorized: port mapping is switched off in the router",
    3: "the router has no connection",
    4: "out of resources",
    5: "unsupported opcode",
}
"""section 3.5"""


class RouterError(Exception):
    """The router maps no port. The text says why."""


class Mapping(NamedTuple):
    """An outside address of the router, its port, and the seconds for which the mapping stands."""

    host: str
    port: int
    lifetime: float


def default_gateway(routes: Path = ROUTES) -> str:
    """The IPv4 address of the default gateway, or ""."""
    try:
        rows = [line.split() for line in routes.read_text().splitlines()[1:]]
    except OSError:
        return ""
    found = [(int(row[6]), row[2]) for row in rows if row[1] == "00000000" and row[2] != "00000000"]
    return str(ipaddress.IPv4Address(bytes.fromhex(min(found)[1])[::-1])) if found else ""


class NatPmp:
    """One router.

    Args:
        gateway: its address on this host's network.
        server_port: UDP port.
        first_timeout: see `FIRST_TIMEOUT`.
    """

    name = "NAT-PMP"

    def __init__(self, gateway: str, server_port: int = SERVER_PORT, first_timeout: float = FIRST_TIMEOUT) -> None:
        self._place, self._first_timeout = (gateway, server_port), first_timeout

    def map(self, port: int, lifetime: float) -> Mapping:
        """Map a TCP port of the router to `port` of this host, for at most `lifetime` seconds.

        Raises:
            RouterError: it did not.
        """
        outside, granted = self._ask_for(port, port, round(lifetime))
        return Mapping(self.outside_address(), outside, float(granted))

    def unmap(self, port: int) -> None:
        """Remove the mapping. Raises RouterError."""
        self._ask_for(port, 0, 0)

    def outside_address(self) -> str:
        """The router's outside address. Nothing is mapped. Raises RouterError."""
        return str(ipaddress.IPv4Address(self._ask(struct.pack("!BB", 0, ADDRESS), 12)[8:12]))

    def _ask_for(self, inside: int, outside: int, lifetime: int) -> tuple[int, int]:
        answer = self._ask(struct.pack("!BBHHHI", 0, MAP_TCP, 0, inside, outside, lifetime), 16)
        confirmed, mapped, granted = struct.unpack("!HHI", answer[8:16])
        if confirmed != inside:
            raise RouterError(f"{self._place[0]} answered for port {confirmed} instead of {inside}")
        return mapped, granted

    def _ask(self, request: bytes, size: int) -> bytes:
        """The answer of `size` bytes to `request`."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as router:
                router.connect(self._place)  # answers of other hosts are not received
                for attempt in range(TRIES):
                    router.settimeout(self._first_timeout * 2**attempt)
                    router.send(request)
                    with contextlib.suppress(TimeoutError):
                        if answer := self._read(router, request[1], size):
                            return answer
        except OSError as error:
            raise RouterError(f"{self._place[0]} does not speak NAT-PMP: {error.strerror}") from None
        raise RouterError(f"{self._place[0]} does not answer NAT-PMP")

    def _read(self, router: socket.socket, opcode: int, size: int) -> bytes:
        """The next answer to `opcode`; b"" if others came instead. Raises TimeoutError, RouterError."""
        for _ in range(READS):
            answer = router.recv(64)
            if len(answer) >= 4 and answer[0] == 0 and answer[1] == ANSWER + opcode:
                if result := int.from_bytes(answer[2:4], "big"):
                    raise RouterError(f"{self._place[0]} refused: {RESULTS.get(result, f'result {result}')}")
                if len(answer) >= size:
                    return answer
        return b""
