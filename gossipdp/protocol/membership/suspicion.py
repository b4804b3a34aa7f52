"""Membership's numbers: its settings and presets, the formulas over them, and Lifeguard's local health.

Suspicion timeouts, transmission limits and probe times are pure functions, so tests can check them as tables. No
member, message or clock is here.

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
    """one member is probed every max(h * probe_interval, 2 * probe timeout)"""
    probe_timeout: float = 0.5
    """the indirect probes start max(h * probe_timeout, 3 * measured rtt) after the direct one"""
    indirect_probes: int = 3
    """k members asked to ping in this peer's place"""
    lifeguard: bool = True
    """False: plain SWIM, without local health, nacks, shrinking suspicion and buddies, for comparison"""
    suspicion_multiplier: float = 4.0
    """shortest suspicion = suspicion_multiplier * max(1, log10(N + 1)) * probe_interval; without Lifeguard, all"""
    suspicion_longest: float = 6.0
    """longest suspicion = suspicion_longest * shortest, for a suspect with a single accuser"""
    confirmations: int = 3
    """K, at most 7: a suspicion that K members confirm (or all, if there are fewer) is shortest"""
    retransmit_multiplier: int = 4
    """transmissions of one update by each member = retransmit_multiplier * ceil(log10(N + 1))"""
    gossip_interval: float = 0.2
    """while there are updates to spread, they go to `gossip_peers` members at this interval"""
    gossip_peers: int = 3
    push_pull_interval: float = 30.0
    """longest pause between comparisons of views with a random member; about probe_interval while they teach something
    new, then doubling"""
    bulk_rate: float = 8e3
    """bytes a second that a peer spends on messages that can wait: comparisons of views, and gossip of starts. If all
    members start at once, they know each other after about 240 N / bulk_rate seconds"""
    control_rate: float = 64e3
    """bytes a second that a peer spends on all of membership, averaged over some seconds. Beyond it news, answers and
    progress reports wait, and pings and their answers carry no news"""
    reconnect_interval: float = 1.0
    """at each interval one of the F lost members is dialled with probability min(1, 3 F / N)"""
    awareness_max: int = 8
    """largest local health multiplier"""
    forget_after: float = 86_400.0
    """a failed or left member is forgotten after this time"""
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
    """Transmissions of one update: multiplier * ceil(log10(N + 1)) (SWIM section 4.1: lambda log N)."""
    return multiplier * math.ceil(math.log10(members + 1))


def probe_times(
    interval: float, timeout: float, multiplier: int, rtt: float | None, awareness_max: int
) -> tuple[float, float]:
    """Times of one probe, in seconds from its start: (indirect probes, verdict).

    Both grow with the local health multiplier. A slow path gets max(timeout, 3 rtt), up to half the longest period. The
    indirect probes get as long as the direct one.
    """
    longest = interval * awareness_max
    direct = max(timeout * multiplier, min(3.0 * (rtt or 0.0), longest / 2))
    return direct, max(interval * multiplier, 2.0 * direct)


class LocalHealth:
    """Lifeguard's local health multiplier (section IV.A): the slower this peer is, the longer it waits for answers.

    `multiplier` is 1 for a healthy peer and at most `maximum`; it scales the probe's interval and timeout.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.multiplier = 1

    def worse(self, by: int = 1) -> None:
        """An ack or nack did not come, this peer refuted a suspicion of itself, or a timer ran late."""
        self.multiplier = min(self.multiplier + by, self._maximum)

    def better(self) -> None:
        """A probe was answered in time."""
        self.multiplier = max(self.multiplier - 1, 1)
