"""The way to one address, step by step: name, route, TCP, greeting, CURVE, hello, clock, packet size, throughput.

A visit has a key of its own, made for the moment, so it disturbs no link of this home's daemon. It blocks: call it in
a thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.dial_causes import Cause, DialFault, foremost, look, unreachable
from gossipdp.runtime.network.events import DialFailed, LinkUp
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.proxy import Proxy, probe
from gossipdp.runtime.network.resolver import Target, looked_up
from peers.doctor.passing import Passing, Trials
from peers.doctor.talk import ANSWERS, LIMITS, Network, Talk

__all__ = ["Speed", "Visit", "visit"]

SLOW_HANDSHAKE: Final = 0.9
"""seconds after which a handshake that broke off hardly tells another secret: a member waits at least 1 s for it"""
LARGE: Final = 64 << 10
"""bytes of one message that takes packets of full size"""
BROKEN_BY: Final = {
    "GD-201": DialFault.WRONG_SECRET,
    "GD-202": DialFault.WRONG_KEY,
    "GD-203": DialFault.OTHER_NETWORK,
    "GD-204": DialFault.NOT_ALLOWED,
    "GD-205": DialFault.COPIED_HOME,
    "GD-208": DialFault.OLD_SECRET,
    "GD-302": DialFault.OTHER_VERSION,
}


class Speed(NamedTuple):
    """Throughput of one connection, in bytes a second; 0.0: the member sent nothing more."""

    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of one address.

    reached: the last step that went well: "", "name", "route", "tcp", "greeting", "hello", "clock" or "large". Through
        a proxy the first is "proxy", and "greeting" follows.
    cause: why it went no further; None if nothing is wrong.
    seen: the IP address that the member sees this host come from.
    rtt: seconds.
    ahead: seconds by which the member's clock is ahead of this host's; None if it did not tell.
    packet: bytes of an IP packet on this way, as this host's kernel knows; 0 if it does not tell.
    passing: which packets pass "to" and "from" the member, where large ones are lost in one of these directions.
    """

    address: str
    reached: str = ""
    cause: Cause | None = None
    peer: bytes = b""
    target: str = ""
    seen: str = ""
    rtt: float = 0.0
    ahead: float | None = None
    packet: int = 0
    passing: Mapping[str, Passing] = field(default_factory=dict)
    speed: Speed | None = None


def visit(
    address: str,
    network: Network | None,
    identities: Sequence[Identity] = (),
    *,
    proxy: Proxy | None = None,
    fast: bool = False,
    wall: Callable[[], float] = time.time,
) -> Visit:
    """Examine the way to `address`.

    Args:
        network: name and secret; None: the way is examined up to the greeting.
        identities: keys to try in turn where the member admits only some; by default one made for the moment.
        proxy: through which to go, one that works; None: directly.
        fast: measure the throughput, too.
        wall: the system clock of this host.
    """
    found = _greeted(address) if proxy is None else _greeted_through(proxy, address)
    if found.cause is not None or network is None:
        return found
    for identity in identities or (Identity.generate(),):
        met = _met(found, network, identity, proxy, fast=fast, wall=wall)
        if met.cause is None or met.cause.code not in ("GD-204", "GD-208"):
            break
    return met


def _greeted(address: str) -> Visit:
    """Name, route, TCP and greeting."""
    try:
        host, port = split_address(address)
    except ConfigError as error:
        return _no_address(address, error)
    targets = looked_up(host, port)
    if isinstance(targets, Cause):
        return Visit(address, cause=targets)
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
    if cause.fault is DialFault.SPEAKS:
        return Visit(address, "greeting", target=target.text, packet=_packet(target.text))
    reached = "tcp" if cause.fault in (DialFault.SILENT, DialFault.ANOTHER_SERVICE, DialFault.PROXY) else "route"
    return Visit(address, reached, cause, target=target.text)


def _greeted_through(proxy: Proxy, address: str) -> Visit:
    """Name, route, TCP and greeting, all of them the proxy's part."""
    try:
        split_address(address)
    except ConfigError as error:
        return _no_address(address, error)
    cause = probe(proxy, address, LIMITS.connect)
    if cause is not None:
        return Visit(address, "proxy", cause, target=address)
    return Visit(address, "greeting", target=address, packet=_packet(str(proxy)))


def _no_address(address: str, error: ConfigError) -> Visit:
    return Visit(address, cause=Cause(error.code, "is not host:port", do=error.do, fault=DialFault.NOT_AN_ADDRESS))


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


def _met(
    found: Visit,
    network: Network,
    identity: Identity,
    proxy: Proxy | None,
    *,
    fast: bool,
    wall: Callable[[], float],
) -> Visit:
    """CURVE, hello and what follows, on one link."""
    with closing(Talk(network, identity, proxy)) as talk:
        began = time.monotonic()
        up = talk.dial(found.target, LIMITS.connect + LIMITS.hello)
        if not isinstance(up, LinkUp):
            return replace(found, cause=_refused(up, time.monotonic() - began))
        met = replace(found, reached="hello", peer=up.peer, seen=talk.seen)
        met = _measured(met, talk, fast=fast, wall=wall)
    if not met.passing or not met.packet or proxy is not None:  # the proxy makes packets of its own
        return met
    return replace(met, passing=Trials(network, met.target, met.packet, met.rtt).both_ways(met.passing))


def _refused(event: DialFailed | None, elapsed: float) -> Cause:
    if event is None:
        do = "check whether the peer there hangs"
        return Cause("GD-101", "does not complete the handshake", "", do, DialFault.SILENT)
    if event.code == "GD-201" and elapsed >= SLOW_HANDSHAKE:
        said = f"the encrypted handshake broke off after {elapsed:.1f} s"
        detail = "the link is slow or full, or the secret differs"
        do = "see what else uses the link; if it is fast, compare the fingerprints that `gossipdp keys show` prints"
        return Cause(event.code, said, detail, do, DialFault.SLOW_HANDSHAKE)
    return foremost(event.causes)._replace(fault=BROKEN_BY.get(event.code, DialFault.SILENT))


def _measured(met: Visit, talk: Talk, *, fast: bool, wall: Callable[[], float]) -> Visit:
    began, ours = time.monotonic(), wall()
    first = talk.ask(met.peer, Lane.CONTROL, patience=ANSWERS)
    if first is None:
        return met  # an earlier version, which does not answer
    rtt = time.monotonic() - began
    met = replace(met, reached="clock", rtt=rtt, ahead=first.clock - (ours + rtt / 2))
    if talk.ask(met.peer, Lane.DATA, send=LARGE) is None:
        return replace(met, passing={"to": Passing(0, met.packet)})
    if talk.ask(met.peer, Lane.DATA, back=LARGE) is None:
        return replace(met, passing={"to": Passing(), "from": Passing(0, met.packet)})
    speed = Speed(talk.speed(met.peer, up=True), talk.speed(met.peer, up=False)) if fast else None
    return replace(met, reached="large", speed=speed)
