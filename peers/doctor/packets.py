"""Counts the TCP connection attempts that reach this host, before its own firewall drops any of them.

A raw packet socket sees them (packet(7)). It needs CAP_NET_RAW, as root has it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections import Counter
from types import TracebackType
from typing import Final

__all__ = ["Arrivals"]

ALL_PROTOCOLS: Final = 0x0003
OUTGOING: Final = 4
"""packet type of what this host itself sends"""
TCP: Final = 6
SYN, ACK = 0x02, 0x10
MOST: Final = 100_000
"""packets read in one call"""


class Arrivals:
    """Attempts to connect that arrived since the begin of the `with` block.

    seen: whether packets can be seen at all.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._count: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Arrivals:
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
            self._socket.setblocking(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def seen(self) -> bool:
        return self._socket is not None

    def count(self) -> Counter[tuple[str, int]]:
        """Number of attempts so far, by source address and by port of this host."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                for _ in range(MOST):
                    packet, (_, _, kind, *_) = self._socket.recvfrom(128)
                    if kind != OUTGOING and (attempt := _attempt(packet)) is not None:
                        self._count[attempt] += 1
        return self._count


def _attempt(packet: bytes) -> tuple[str, int] | None:
    """Source address and port dialled, if `packet` asks for a TCP connection."""
    try:
        version = packet[0] >> 4
        if version == 4:
            begin, protocol = (packet[0] & 15) * 4, packet[9]
            source = str(ipaddress.IPv4Address(packet[12:16]))
        elif version == 6:
            begin, protocol = 40, packet[6]
            source = str(ipaddress.IPv6Address(packet[8:24]))
        else:
            return None
        if protocol != TCP or packet[begin + 13] & (SYN | ACK) != SYN:
            return None
        (port,) = struct.unpack_from("!H", packet, begin + 2)
    except (IndexError, struct.error, ipaddress.AddressValueError):
        return None
    return source, port
