"""The way to one address, step by step: name, route, TCP, greeting, CURVE, hello, clock, packet size, throughput.

A visit has a key of its own, made for the moment, so it disturbs no link of this home's daemon. It blocks: call it in
a thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.dial_causes import SPEAKS_ZMTP, Cause, look, unreachable, unresolved
from gossipdp.runtime.network.events import DialFailed, LinkDown, LinkUp, Measured, TransportEvent
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.resolver import Target, looked_up
from gossipdp.runtime.network.signed_hello import MAX_FILLER, Probe, pack
from gossipdp.runtime.network.transport import Transport
from peers.doctor.path_mtu import Relay, search

__all__ = ["LIMITS", "Network", "Speed", "Visit", "visit"]

LIMITS: Final = TransportLimits(connect=4.0, handshake=3.0, hello=3.0)
"""patience that covers a round trip of half a second and a lost packet, and leaves time for the rest"""
ANSWERS: Final = 4.0
"""seconds for an answer on a link that is up: two lost packets, or 64 KiB at 0.2 Mbit/s"""
SLOW_HANDSHAKE: Final = 0.9
"""seconds after which a handshake that broke off hardly tells another secret: a member waits at least 1 s for it"""
LARGE: Final = 64 << 10
"""bytes of one message that takes packets of full size"""
TRIAL: Final = 0.8
"""seconds for the answer to a packet on trial, and `TRIAL_TRIPS` round trips: it may be sent again twice"""
TRIAL_TRIPS: Final = 4
MOST_TRIAL: Final = 1.5
TRIALS: Final = 3.5
"""seconds after which no more trials begin"""
SPEED_SECONDS: Final = 2.0
SPEED_BYTES: Final = 24 << 20
"""bytes each way, at most: less than half of what one asker gets in a minute"""
WINDOW: Final = 8
"""messages on their way during the measurement of throughput"""
BROKEN_BY: Final = {
    "GD-201": "wrong-secret",
    "GD-202": "wrong-key",
    "GD-203": "other-network",
    "GD-204": "not-allowed",
    "GD-205": "copied-home",
    "GD-302": "other-version",
}


@dataclass(frozen=True, slots=True)
class Network:
    """What a stranger needs to be let in."""

    name: str
    secret: NetworkSecret


class Speed(NamedTuple):
    """Throughput of one connection, in bytes a second; 0.0: the member sent nothing more."""

    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of one address.

    reached: the last step that went well: "", "name", "route", "tcp", "greeting", "hello", "clock" or "large".
    cause: why it went no further; None if nothing is wrong.
    seen: the IP address that the member sees this host come from.
    rtt: seconds.
    ahead: seconds by which the member's clock is ahead of this host's; None if it did not tell.
    one_way: "" or the direction in which large messages are lost: "to" or "from" the member.
    packet: bytes of a packet on this way, as this host's kernel knows; 0 if it does not tell.
    passes: bytes of the largest packet that gets through, found where large ones are lost; 0 if it was not found.
    lost: bytes of the smallest packet that was lost in these trials.
    """

    address: str
    reached: str = ""
    cause: Cause | None = None
    peer: bytes = b""
    target: str = ""
    seen: str = ""
    rtt: float = 0.0
    ahead: float | None = None
    one_way: str = ""
    packet: int = 0
    passes: int = 0
    lost: int = 0
    speed: Speed | None = None


def visit(
    address: str,
    network: Network | None,
    identities: Sequence[Identity] = (),
    *,
    fast: bool = False,
    wall: Callable[[], float] = time.time,
) -> Visit:
    """Examine the way to `address`.

    Args:
        network: name and secret; None: the way is examined up to the greeting.
        identities: keys to try in turn where the member admits only some; by default one made for the moment.
        fast: measure the throughput, too.
        wall: the system clock of this host.
    """
    found = _greeted(address)
    if found.cause is not None or network is None:
        return found
    for identity in identities or (Identity.generate(),):
        met = _met(found, network, identity, fast=fast, wall=wall)
        if met.cause is None or met.cause.code != "GD-204":
            break
    return met


def _greeted(address: str) -> Visit:
    """Name, route, TCP and greeting."""
    try:
        host, port = split_address(address)
    except ConfigError as error:
        return Visit(address, cause=Cause(error.code, "is not host:port", error.do, "not-an-address"))
    targets = looked_up(host, port)
    if isinstance(targets, str):
        return Visit(address, cause=unresolved(targets))
    best = Visit(address, "name", unreachable("no route"))
    for target in targets:
        tried = _target_greeted(address, target)
        if tried.cause is None:
            return tried
        if STEPS.index(tried.reached) >= STEPS.index(best.reached):
            best = tried
    return best


STEPS: Final = ("", "name", "route", "tcp", "greeting", "hello", "clock", "large")


def _target_greeted(address: str, target: Target) -> Visit:
    if not target.routable:
        return Visit(address, "name", unreachable("this host has no route to it"), target=target.text)
    cause = look(target.text, True, LIMITS.connect)
    if cause.fault == SPEAKS_ZMTP:
        return Visit(address, "greeting", target=target.text, packet=_packet(target.text))
    reached = "tcp" if cause.fault in ("silent", "another-service", "proxy") else "route"
    return Visit(address, reached, cause, target=target.text)


def _packet(target: str) -> int:
    """Bytes of a packet to `target` that the kernel believes to get through (IP_MTU, ip(7)). Nothing is sent."""
    host, port = split_address(target)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    level, option = (socket.IPPROTO_IPV6, 24) if family == socket.AF_INET6 else (socket.IPPROTO_IP, 14)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return probe.getsockopt(level, option)
    except OSError:
        return 0


def _met(found: Visit, network: Network, identity: Identity, *, fast: bool, wall: Callable[[], float]) -> Visit:
    """CURVE, hello and what follows, on one link."""
    transport = Transport(
        identity, network.secret, network=network.name, run=b"", incarnation=1, listen=None, limits=LIMITS
    )
    with closing(transport):
        talk = _Talk(transport)
        began = time.monotonic()
        transport.send(b"", found.target, Lane.CONTROL, pack(Probe()))
        up = talk.until(lambda event: isinstance(event, LinkUp | DialFailed), LIMITS.connect + LIMITS.hello)
        if not isinstance(up, LinkUp):
            return replace(found, cause=_refused(up, time.monotonic() - began))
        met = replace(found, reached="hello", peer=up.peer, seen=transport.seen)
        met = _measured(met, talk, fast=fast, wall=wall)
    return _narrowed(met, network) if met.one_way and met.packet else met


def _refused(event: TransportEvent | None, elapsed: float) -> Cause:
    if not isinstance(event, DialFailed):
        return Cause("GD-101", "does not complete the handshake", "see whether the peer there hangs", "silent")
    if event.code == "GD-201" and elapsed >= SLOW_HANDSHAKE:
        said = (
            f"the encrypted handshake broke off after {elapsed:.1f} s: the link is slow or full, or the secret differs"
        )
        do = "see what else uses the link; if it is fast, compare the fingerprints that `gossipdp keys show` prints"
        return Cause(event.code, said, do, "slow-handshake")
    text = event.reason.partition(" ")[2] or event.reason
    return Cause(event.code, text, event.do, BROKEN_BY.get(event.code, "silent"))


def _measured(met: Visit, talk: _Talk, *, fast: bool, wall: Callable[[], float]) -> Visit:
    began, ours = time.monotonic(), wall()
    first = talk.ask(met.peer, Lane.CONTROL)
    if first is None:
        return met  # an earlier version, which does not answer
    rtt = time.monotonic() - began
    met = replace(met, reached="clock", rtt=rtt, ahead=first.clock - (ours + rtt / 2))
    if talk.ask(met.peer, Lane.DATA, send=LARGE) is None:
        return replace(met, one_way="to")
    if talk.ask(met.peer, Lane.DATA, back=LARGE) is None:
        return replace(met, one_way="from")
    speed = Speed(talk.speed(met.peer, up=True), talk.speed(met.peer, up=False)) if fast else None
    return replace(met, reached="large", speed=speed)


def _narrowed(met: Visit, network: Network) -> Visit:
    """The visit with the largest packet that passes in the direction in which large messages are lost."""
    patience = min(MOST_TRIAL, TRIAL + TRIAL_TRIPS * met.rtt)
    until = time.monotonic() + TRIALS
    passes, lost = search(met.packet, lambda size: _passes(met, network, size, patience), until)
    return replace(met, passes=passes, lost=lost)


def _passes(met: Visit, network: Network, size: int, patience: float) -> bool | None:
    """Whether packets of `size` bytes get through, with an answer within `patience` seconds; None without a link."""
    transport = Transport(
        Identity.generate(), network.secret, network=network.name, run=b"", incarnation=1, listen=None, limits=LIMITS
    )
    with closing(transport), Relay(met.target, size) as relay:
        talk = _Talk(transport)
        transport.send(b"", relay.address, Lane.CONTROL, pack(Probe()))
        up = talk.until(lambda event: isinstance(event, LinkUp | DialFailed), 2.0 * patience)
        if not isinstance(up, LinkUp):
            return None
        send, back = (2 * size, 0) if met.one_way == "to" else (0, 2 * size)
        return talk.ask(up.peer, Lane.DATA, send=send, back=back, patience=patience) is not None


class _Talk:
    """Questions and answers on the link of one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._number = 0

    def until(self, wanted: Callable[[TransportEvent], bool], seconds: float) -> TransportEvent | None:
        """The first event that is wanted; None if the link ends, or none comes in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0.0:
            for event in self._transport.poll(min(left, 0.1))[0]:
                if wanted(event):
                    return event
                if isinstance(event, LinkDown):
                    return None
        return None

    def ask(
        self, peer: bytes, lane: Lane, *, send: int = 0, back: int = 0, patience: float = ANSWERS
    ) -> Measured | None:
        """One question and its answer; None if none comes within `patience` seconds."""
        number = self._asked(peer, lane, send, back)
        answer = self.until(lambda event: isinstance(event, Measured) and event.number == number, patience)
        return answer if isinstance(answer, Measured) else None

    def speed(self, peer: bytes, *, up: bool) -> float:
        """Bytes a second one way, from the first answer to the last."""
        send, back = (MAX_FILLER, 0) if up else (0, MAX_FILLER)
        waiting, moved, began, last = 0, -MAX_FILLER, 0.0, time.monotonic()
        deadline = last + SPEED_SECONDS
        asked = 0
        while waiting or asked == 0:
            while waiting < WINDOW and asked < SPEED_BYTES and time.monotonic() < deadline:
                self._asked(peer, Lane.DATA, send, back)
                waiting, asked = waiting + 1, asked + MAX_FILLER
            answer = self.until(lambda event: isinstance(event, Measured), ANSWERS)
            if not isinstance(answer, Measured) or max(answer.received, answer.filler) < MAX_FILLER:
                break
            last, waiting, moved = time.monotonic(), waiting - 1, moved + MAX_FILLER
            began = began or last
        return moved / (last - began) if moved > 0 and last > began else 0.0

    def _asked(self, peer: bytes, lane: Lane, send: int, back: int) -> int:
        self._number += 1
        self._transport.measure(peer, lane, self._number, send=send, back=back)
        return self._number
