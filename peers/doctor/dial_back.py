"""Can members dial this host? It listens on the peer's port for a moment, and asks a member to dial back."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple

import psutil

from gossipdp.errors import GossipdpError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import DialledBack, LinkUp, TransportEvent
from gossipdp.runtime.network.host_port import join_address, split_address
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.signed_hello import Probe, pack
from gossipdp.runtime.network.transport import Transport
from peers.doctor.findings import Finding, fine, grey, red, yellow
from peers.doctor.talk import LIMITS, Network

__all__ = ["Arrivals", "DialBack", "dial_back", "dialable", "own_hosts"]


ALL_PROTOCOLS: Final = 0x0003
OUTGOING: Final = 4
"""packet type of what this host itself sends"""
TCP: Final = 6
SYN, ACK = 0x02, 0x10
MOST: Final = 100_000
"""packets read in one call"""


class Arrivals:
    """Attempts to connect that arrived since the begin of the `with` block, before a firewall drops any of them.

    A raw packet socket sees them (packet(7)). It needs CAP_NET_RAW, as root has it.

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


ABOUT: Final = "dialled by others"
REST: Final = LIMITS.redial + 0.1
"""seconds before the question: a member does not dial an address at which a dial has just failed"""


@dataclass(frozen=True, slots=True)
class DialBack:
    """What came of the question.

    address: where the member was asked to dial this host; "" if no question was put.
    met: None if the member did not answer in time.
    tried: the member sees this host come from that IP address, and has dialled it.
    arrived: attempts at this host's port that reached it; None if they cannot be seen.
    astray: another port of this host at which the member's attempts arrived; 0 if none.
    own: the address is one of this host's interfaces.
    busy: the port is taken, so no question was put.
    """

    address: str = ""
    met: bool | None = None
    tried: bool = True
    arrived: int | None = None
    astray: int = 0
    own: bool = True
    busy: bool = False


def dial_back(seeds: Sequence[str], network: Network, port: int, advertised: Sequence[str], until: float) -> DialBack:
    """Listen on `port`, link with one of the `seeds`, and have its member dial this host.

    Args:
        seeds: ``host:port`` of members.
        advertised: addresses that others are told to dial; empty: where the member sees this host come from.
        until: time.monotonic() at which to give up.
    """
    try:
        transport = Transport(
            Identity.generate(), network.secret, network=network.name, run=b"", incarnation=1,
            listen=f"tcp://*:{port}", limits=LIMITS,
        )  # fmt: skip
    except GossipdpError:
        return DialBack(busy=True)
    with closing(transport), Arrivals() as arrivals:
        question = _ask(transport, seeds, port, advertised, until)
        return _answered(question, arrivals, port)


class _Question(NamedTuple):
    """Where a member was asked to dial, the member's own IP address, and its answer."""

    address: str = ""
    member: str = ""
    answer: DialledBack | None = None


def _ask(transport: Transport, seeds: Sequence[str], port: int, advertised: Sequence[str], until: float) -> _Question:
    for seed in seeds:
        transport.send(b"", seed, Lane.CONTROL, pack(Probe()))
    ups = (event for event in _events(transport, until) if isinstance(event, LinkUp) and not event.inbound)
    if (link := next(ups, None)) is None:
        return _Question()
    for _ in _events(transport, time.monotonic() + REST):
        pass
    address = next(iter(advertised), join_address(transport.seen, port))
    transport.ask_to_dial_back(link.peer, address)
    answers = (event for event in _events(transport, until) if isinstance(event, DialledBack))
    return _Question(address, split_address(link.address)[0], next(answers, None))


def _events(transport: Transport, until: float) -> Iterator[TransportEvent]:
    while (left := until - time.monotonic()) > 0.0:
        yield from transport.poll(min(left, 0.1))[0]


def _answered(question: _Question, arrivals: Arrivals, port: int) -> DialBack:
    count, answer = arrivals.count(), question.answer
    astray = [at for (source, at), _ in count.most_common() if source == question.member and at != port]
    return DialBack(
        address=question.address,
        met=None if answer is None else answer.met,
        tried=answer is None or answer.tried,
        arrived=sum(number for (_, at), number in count.items() if at == port) if arrivals.seen else None,
        astray=next(iter(astray), 0),
        own=not question.address or split_address(question.address)[0] in own_hosts(),
    )


def own_hosts() -> set[str]:
    """The IP addresses of this host's interfaces."""
    found = (address.address for each in psutil.net_if_addrs().values() for address in each)
    return {address.partition("%")[0] for address in found}


def dialable(back: DialBack, port: int, *, chosen: bool) -> Finding:
    """The finding that follows.

    Args:
        chosen: the operator has set the address, so a peer that cannot be dialled there is a fault.
    """
    if back.busy:
        return grey(ABOUT, "not examined: the port is taken")
    if not back.address:
        return grey(ABOUT, "not examined: no member was met")
    if back.met:
        return fine(ABOUT, f"a member has dialled this host at {back.address}")
    if not back.tried:
        said = f"not examined: {back.address} is not at the IP address where the member sees this host"
        return grey(ABOUT, said)
    fault, why, do = _diagnosis(back, port)
    said = f"a member cannot dial {back.address}: {why}" if back.met is False else f"no answer on {back.address}: {why}"
    return (red if chosen else yellow)(ABOUT, fault, said, f"{do}; without that this host can join, but only dials out")


def _diagnosis(back: DialBack, port: int) -> tuple[str, str, str]:
    """Name of the fault, what it is, and what to do."""
    outside = split_address(back.address)[1]
    if back.arrived:
        do = f"let TCP port {port} in: `iptables -I INPUT -p tcp --dport {port} -j ACCEPT`, or ufw, firewalld, nft"
        return (
            "dropped-here",
            f"its packets reach this host, and this host's own firewall drops them at port {port}",
            do,
        )
    if back.astray:
        why = f"its packets reach this host at port {back.astray}, where no peer listens"
        return "port-map", why, f"let the router map outside port {outside} to port {port} of this host"
    if not back.own:
        sure = "" if back.arrived is None else ", and none of its packets reaches this host"
        why = f"the address is a router's{sure}: it maps outside port {outside} to no port, or to another one"
        return "port-map", why, f"map outside TCP port {outside} to port {port} of this host, or correct --advertise"
    where = "a firewall drops them" if back.arrived is None else "a firewall before this host drops them"
    do = f"open TCP port {outside} in the provider's security group, the router, and this host's firewall"
    return "dropped-before", where, do
