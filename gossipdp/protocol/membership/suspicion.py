"""Membership's numbers: its settings and presets, the formulas over them, and Lifeguard's local health.

How long to suspect, how often to repeat, how healthy this peer itself is: pure functions and one small counter, so that
they are tested as tables. No member, message or clock here.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002), sections 4.1 and 4.2; Dadgar, Phillips, Currey, "Lifeguard: local
health awareness for more accurate failure detection" (DSN-W 2018), section IV; hashicorp/memberlist for the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "LAN",
    "LOCAL",
    "PRESETS",
    "WAN",
    "LocalHealth",
    "MembershipConfig",
    "probe_times",
    "suspicion_bounds",
    "suspicion_timeout",
    "transmit_limit",
]


@dataclass(frozen=True, kw_only=True)
class MembershipConfig:
    """Times in seconds; the defaults are those of `LAN`. N counts live members, F lost ones (failed or suspected); h is
    the local health multiplier, 1 to `awareness_max`."""

    probe_interval: float = 1.0
    """one member is probed per max(h * probe_interval, 2 * probe timeout)"""
    probe_timeout: float = 0.5
    """the direct probe waits max(h * probe_timeout, 3 * measured rtt), then the indirect ones start"""
    indirect_probes: int = 3
    """k members asked to probe in my place"""
    lifeguard: bool = True
    """off: plain SWIM, without local health, nacks, shrinking suspicion and buddies, to compare with"""
    suspicion_multiplier: float = 4.0
    """shortest suspicion = suspicion_multiplier * max(1, log10(N + 1)) * probe_interval; without Lifeguard, each one"""
    suspicion_longest: float = 6.0
    """longest suspicion = suspicion_longest * shortest: that of a suspect whom one member alone has accused"""
    confirmations: int = 3
    """K members must confirm a suspicion before it is shortest, or as many as there are, if that is fewer; at most 7"""
    retransmit_multiplier: int = 4
    """transmissions of one update by each member = retransmit_multiplier * ceil(log10(N + 1))"""
    gossip_interval: float = 0.2
    """while there are updates to spread, they go to `gossip_peers` members at this interval"""
    gossip_peers: int = 3
    push_pull_interval: float = 30.0
    """views are compared with one random member: about every probe_interval while that teaches something new, then at
    pauses that double up to this"""
    bulk_rate: float = 8e3
    """bytes a second that a peer spends on what can wait, comparing views and gossiping starts; a network whose members
    all start at once knows itself after about 240 N / bulk_rate seconds"""
    control_rate: float = 64e3
    """bytes a second that a peer spends on all of membership, on average over some seconds; beyond it news, answers and
    progress reports wait, and pings and their answers carry no news"""
    reconnect_interval: float = 1.0
    """per interval a failed or suspected member is dialled with probability min(1, 3 F / N), F of them being lost"""
    awareness_max: int = 8
    """largest local health multiplier"""
    forget_after: float = 86_400.0
    """a failed or left member is forgotten after so long"""
    join_interval: float = 0.5
    """first pause between dials to the seeds; it doubles"""
    join_longest: float = 10.0
    """longest pause between dials to the seeds"""


LAN: Final = MembershipConfig()
"""One site, round trips of milliseconds. Up to N = 16 a killed peer is failed everywhere within 15 s (median 6 s)."""
LOCAL: Final = MembershipConfig(
    probe_interval=0.4,
    probe_timeout=0.2,
    suspicion_multiplier=3.0,
    gossip_interval=0.1,
    push_pull_interval=10.0,
    reconnect_interval=0.4,
    join_interval=0.25,
    join_longest=5.0,
)
"""One machine. Up to N = 16 a killed peer is failed everywhere within 5 s (median 2 s)."""
WAN: Final = MembershipConfig(
    probe_interval=2.0,
    probe_timeout=1.0,
    suspicion_multiplier=2.0,
    confirmations=2,
    gossip_interval=0.5,
    gossip_peers=4,
    push_pull_interval=60.0,
    reconnect_interval=2.0,
    join_interval=1.0,
)
"""Sites apart, round trips to a second. Up to N = 16 a killed peer is failed everywhere within 15 s (median 8 s)."""
PRESETS: Final[Mapping[str, MembershipConfig]] = {"local": LOCAL, "lan": LAN, "wan": WAN}


def suspicion_bounds(multiplier: float, longest: float, members: int, probe_interval: float) -> tuple[float, float]:
    """Shortest and longest suspicion in seconds: multiplier * max(1, log10(N + 1)) * probe_interval, and `longest`
    times that. `members` counts the live ones, this peer included.
    """
    least = multiplier * max(1.0, math.log10(members + 1)) * probe_interval
    return least, longest * least


def suspicion_timeout(confirmations: int, expected: int, bounds: tuple[float, float]) -> float:
    """max(least, most - (most - least) log(C + 1) / log(K + 1)) seconds (Lifeguard section IV.B).

    C independent confirmations have been seen of the K at which the timeout is shortest.
    """
    least, most = bounds
    if expected < 1:
        return least
    return max(least, most - (most - least) * math.log(confirmations + 1) / math.log(expected + 1))


def transmit_limit(multiplier: int, members: int) -> int:
    """How often one update is piggybacked: multiplier * ceil(log10(N + 1)) (SWIM section 4.1: lambda log N)."""
    return multiplier * math.ceil(math.log10(members + 1))


def probe_times(
    interval: float, timeout: float, multiplier: int, rtt: float | None, awareness_max: int
) -> tuple[float, float]:
    """(seconds until the indirect probes, seconds until the verdict) of one probe.

    Both grow with the local health multiplier. A slow path gets max(timeout, 3 rtt), up to half the longest period,
    and the indirect probes always as long as the direct one had.
    """
    longest = interval * awareness_max
    direct = max(timeout * multiplier, min(3.0 * (rtt or 0.0), longest / 2))
    return direct, max(interval * multiplier, 2.0 * direct)


class LocalHealth:
    """Lifeguard's local health multiplier (section IV.A): how little this peer should trust its own silence.

    `multiplier` is 1 for a healthy peer and at most `maximum`; it scales the probe's interval and timeout.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.multiplier = 1

    def worse(self, by: int = 1) -> None:
        """A missed ack, a missed nack, a refuted suspicion of oneself, or a timer that ran late."""
        self.multiplier = min(self.multiplier + by, self._maximum)

    def better(self) -> None:
        """A probe was answered in time."""
        self.multiplier = max(self.multiplier - 1, 1)
