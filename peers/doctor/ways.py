"""Findings about the ways to members, and about clocks, packets and addresses on these ways."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from gossipdp.error_codes import ADVICE
from gossipdp.protocol.wire.messages import printable, short
from gossipdp.runtime.network.dial_causes import Cause, DialFault
from gossipdp.runtime.network.proxy import Proxy
from peers.doctor.findings import Finding, Light, fine, grey, red, yellow
from peers.doctor.passing import Passing
from peers.doctor.visits import Speed, Visit

__all__ = ["clock", "packets", "proxied", "seen", "speeds", "ways"]

DOUBTFUL: Final = 2.0
"""seconds between two clocks from which logs and metrics of hosts no longer fit together"""
USUAL: Final = 1280
"""bytes of a packet that passes nearly everywhere: IPv6 demands it"""
WRONG: Final = 60.0
"""seconds from which a clock is wrong"""


def proxied(proxy: Proxy, cause: Cause | None) -> Finding:
    """Whether the proxy works. cause: why not."""
    if cause is None:
        return fine("proxy", f"{proxy} speaks SOCKS5")
    return red("proxy", cause.fault or "", cause.text, cause.do or ADVICE.get(cause.code, ""))


def ways(visits: Sequence[Visit]) -> list[Finding]:
    """One finding for each address. While one address leads to a member, the others are only doubtful."""
    reached = any(each.peer for each in visits)
    return [_way(each, reached) for each in visits]


def _way(visit: Visit, reached: bool) -> Finding:
    about = f"way to {printable(visit.address)}"
    if visit.peer:
        return fine(about, f"peer {short(visit.peer)} answers in {visit.rtt * 1e3:.0f} ms")
    if visit.cause is None:
        return grey(about, "a peer answers; an invite (@FILE) shows whether it lets this host in")
    do, text = visit.cause.do or ADVICE.get(visit.cause.code, ""), visit.cause.text
    if visit.cause.fault is DialFault.SILENT:
        do = "run `gossipdp doctor` on that host; if no peer runs there, correct address and port"
        text = "the other side does not answer: a peer that is stopped or hangs, or another program"
    step = f"{visit.reached} ok, then " if visit.reached else ""
    return (yellow if reached else red)(about, visit.cause.fault or "", f"{step}{text}", do)


def clock(visits: Sequence[Visit]) -> Finding:
    """Whether this host's clock is that of the members."""
    ahead = [each.ahead for each in visits if each.ahead is not None]
    if not ahead:
        return grey("clock", "not compared: no member was met")
    off = statistics.median(ahead)
    uncertain = max(each.rtt for each in visits if each.ahead is not None)
    if abs(off) < max(DOUBTFUL, uncertain):
        return fine("clock", f"within {max(abs(off), uncertain / 2):.2f} s of {_members(len(ahead))}")
    which = "this host" if len(ahead) > 1 else "this host or the member"
    said = f"{_time(abs(off))} {'behind' if off > 0 else 'ahead of'} {_members(len(ahead))}"
    do = f"see `timedatectl` on {which}, and let NTP set the clock (systemd-timesyncd or chrony)"
    return (red if abs(off) >= WRONG else yellow)("clock", "clock-off", said, do)


def packets(visits: Sequence[Visit]) -> list[Finding]:
    """Whether packets of full size get through."""
    findings = []
    for each in visits:
        about = f"packets, {printable(each.address)}"
        if each.passing:
            findings.append(_black_hole(about, each))
        elif each.reached == "large":
            findings.append(fine(about, f"large messages pass both ways (MTU here: {each.packet} bytes)"))
        elif each.peer:
            findings.append(grey(about, "not examined: the member's version does not support this"))
    return findings


def _black_hole(about: str, visit: Visit) -> Finding:
    told = "; ".join(_passing(direction, each) for direction, each in visit.passing.items())
    least = max(each.passes for each in visit.passing.values() if each.lost is not None)
    if not least:
        said = "no packet of any size passes in time, though small messages do: the link is slow, full or loses packets"
        do = "see what else uses or shapes this host's link and that member's; `--speed` measures it"
        return red(about, "slow-link", said, do)
    least = min(each.passes for each in visit.passing.values() if each.lost is not None)
    do = (
        f"lower the MTU here (now {visit.packet}), as with `ip link set dev INTERFACE mtu {least or USUAL}`; "
        "or let ICMP 'fragmentation needed' pass between the hosts"
    )
    return red(about, "mtu-black-hole", f"an MTU black hole: {told} (bytes of IP packets with their headers)", do)


def _passing(direction: str, passing: Passing) -> str:
    """Which packets pass in one direction."""
    if passing.lost is None:
        return f"{direction} the member, large messages pass"
    if not passing.passes:
        return f"{direction} the member, small messages pass and large ones are lost"
    if passing.lost == passing.passes + 1:
        return f"{direction} the member, packets of at most {passing.passes} bytes pass and larger ones are lost"
    return f"{direction} the member, packets of {passing.passes} bytes pass and of {passing.lost} bytes are lost"


def speeds(visits: Sequence[Visit]) -> list[Finding]:
    """Throughput, where it was measured."""
    found = [(each, each.speed) for each in visits if each.speed is not None]
    return [_speed(f"speed, {printable(each.address)}", speed) for each, speed in found]


def _speed(about: str, speed: Speed) -> Finding:
    if not speed.up or not speed.down:
        return grey(about, "not measured: that member gives no more answers within this minute")
    return fine(about, f"{speed.up * 8e-6:.0f} Mbit/s to the member, {speed.down * 8e-6:.0f} from it")


def seen(visits: Sequence[Visit], own: set[str], router: str, *, proxy: bool = False) -> Finding:
    """Whether an address translation is between this host and the members.

    Args:
        own: IP addresses of this host's interfaces.
        router: outside address of the router, as it tells; "" if unknown.
        proxy: the visits went through one.
    """
    found = sorted({each.seen for each in visits if each.seen})
    about = "address"
    if not found:
        return grey(about, "not known: no member was met")
    if proxy:
        return fine(about, f"members see the proxy, at {', '.join(found)}")
    others = [each for each in found if each not in own]
    if not others:
        return fine(about, f"members see this host at its own address, {', '.join(found)}: no NAT in between")
    said = f"members see this host at {', '.join(others)}, behind the NAT of a router or provider"
    if len(others) > 1:
        do = "give one of them with --advertise, or let this peer dial out: it need not be dialled"
        return yellow(about, "several-addresses", said, do)
    if router and router not in others:
        do = "a port map of the near router is not enough; this peer can dial out without one"
        return yellow(about, "double-translation", f"{said}; the near router is at {router}: a second NAT", do)
    return Finding(about, Light.GREEN, said + (f"; the router {router} maps ports" if router else ""))


def _members(number: int) -> str:
    return "the member that was met" if number == 1 else f"{number} members"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
