"""Membership's settings, and their presets by the kind of network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["LAN", "LOCAL", "PRESETS", "WAN", "MembershipConfig"]


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
    proven_after: float = 1800.0
    """a member that was known for so long has a voice where the words of several members decide (`contacts`)"""
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
