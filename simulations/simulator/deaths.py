"""Believed deaths after the faults: of no living host for long, and of a host that died for good by all (I8)."""

from __future__ import annotations

from collections.abc import Mapping

from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.membership.suspects import suspicion_bounds
from gossipdp.protocol.wire.messages import State
from simulations.simulator.host import Host
from simulations.simulator.network import Network
from simulations.simulator.plans import Plan

__all__ = ["check_found_dead", "lives_that_know", "longest_detection", "watch_living"]

SELDOM = 8
"""probe periods in which at least one of many members probes any given member"""
MISSED = 32
"""one in this number of members may miss gossip, and learns the news when it next compares views"""


def watch_living(network: Network, period: float) -> None:
    """For ten probe periods, check that no host believes another dead for more than two, if both run all the time.

    One host in `MISSED` may do so longer: gossip misses a few, which learn the news when they compare views.

    Args:
        period: seconds of a probe period.
    """
    lives = {host: host.life for host in network.hosts if host.peer and network.now >= host.paused_until}
    since: dict[tuple[Host, Host], float] = {}

    def look() -> None:
        up = [host for host, life in lives.items() if host.peer is not None and host.life == life]
        failed = {(one, other) for one in up for other in up if _is_dead_to(one, other)}
        for pair in list(since):
            if pair not in failed:
                del since[pair]
        long: dict[Host, list[Host]] = {}
        for one, other in failed:
            # Looks are half a period apart. Rounding may make two periods slightly longer.
            if network.now - since.setdefault((one, other), network.now) >= 2.1 * period:
                long.setdefault(other, []).append(one)
        for other, observers in long.items():
            names = ", ".join(sorted(one.name for one in observers))
            allowed = len(up) // MISSED
            assert len(observers) <= allowed, f"I8 {names} took {other.name} for dead for two probe periods"

    for beat in range(20):
        network.at(network.now + beat * period / 2, "seen", None, look)


def _is_dead_to(one: Host, other: Host) -> bool:
    """Whether `one` believes `other` dead, although either could dial the other."""
    record = one.running.view.members.get(other.id)
    return record is not None and record.state == State.FAILED and not (one.outbound or other.outbound)


def lives_that_know(up: list[Host], dead: Host) -> dict[Host, int]:
    """The running hosts that believed `dead` alive, and their lives. Other hosts need not learn of its death."""
    seen = {host: host.running.view.members.get(dead.id) for host in up if host is not dead}
    alive = (State.ALIVE, State.SUSPECT)
    return {host: host.life for host, record in seen.items() if record is not None and record.state in alive}


def longest_detection(plan: Plan) -> float:
    """Seconds after which all members that knew a dead host have failed it.

    The sum of the longest wait for a probe, at the slowest rate of probing, the longest suspicion, and the delay of
    late messages. Each prober visits the members in an order of its own, new each time. So two probes of one member are
    up to 2 (N - 1) - 1 periods apart. Among many, at least one probes it within `SELDOM` periods.
    """
    preset = PRESETS[plan.preset]
    _, longest = suspicion_bounds(
        preset.suspicion_multiplier, preset.suspicion_longest, plan.peers, preset.probe_interval
    )
    periods = min(2 * (plan.peers - 1) - 1, SELDOM) + 1
    return longest + periods * preset.probe_interval * preset.awareness_max + plan.conditions.late


def check_found_dead(dead: Host, lives: Mapping[Host, int]) -> None:
    """Check that these lives believe `dead` failed, as far as they still run."""
    for host, life in lives.items():
        if host.peer is not None and host.life == life:
            record = host.peer.view.members.get(dead.id)
            known = record is not None and record.state in (State.FAILED, State.LEFT)
            assert known, f"I8 {host.name} has not noticed that {dead.name} is dead: {record}"
