"""Are dead members found, and only dead ones? One seed of the experiment, with or without Lifeguard (campaign T6).

N members know each other. Then some get almost no CPU for three minutes. Each of these is blocked for 1 to 60 s, runs
for 10 ms to 1 s, handles its backlog, and is blocked again (the interval experiment of Dadgar et al. 2018, section V).
Meanwhile some healthy members are killed. Both protocols play the same seeds: the same members starve at the same
times, and the same members die.

A false failure, as in that paper, is a healthy live member that another declares failed. Failures of starved members
are counted apart: a member that is silent for a minute looks dead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import median

from gossipdp.protocol.events import Event, MemberChanged
from gossipdp.protocol.membership.config import PRESETS, MembershipConfig
from gossipdp.protocol.wire.messages import State
from simulations.scenarios.members import Host, Members

__all__ = ["Detection", "Pool", "median_mark", "percentile", "run"]

FORMING = 40.0
"""seconds until all know each other"""
WATCHED = 60.0
"""seconds of observation after the starvation"""
FEWER, MEDIAN, LATE = 50, 15.0, 60.0
"""T6's marks over many seeds: the factor of fewer false failures than plain SWIM; seconds until a member knows of a
death, median and 99th percentile"""
MANY, OF_FEW = 4, 25.0
"""from how many seeds the marks apply, and the median allowed to fewer: eight deaths of one seed of 128 members vary
from 12 to 19 s"""


@dataclass(frozen=True)
class Detection:
    """Result of one run. Times in seconds since the death, one for each dead member and each healthy observer."""

    seed: int
    peers: int
    lifeguard: bool
    preset: str
    false_failures: int
    """times that a member came to believe a healthy live member failed"""
    wronged: int
    """healthy live members that at least one other believed failed"""
    starved_failures: int
    """times that a member came to believe a starved member failed"""
    first: tuple[float, ...]
    """seconds until the first healthy member knew, one for each dead member"""
    times: tuple[float, ...]
    """seconds until each healthy member knew; infinite if it never did"""
    blocked: float
    """share of the starved members' time in which they were blocked; 0 if none was starved"""
    events: int
    wall: float
    """real seconds"""


@dataclass(frozen=True)
class Pool:
    """Several runs taken together: sums, and the times of all."""

    false_failures: int
    wronged: int
    starved_failures: int
    first: tuple[float, ...]
    times: tuple[float, ...]
    events: int
    wall: float

    @classmethod
    def of(cls, outcomes: Sequence[Detection]) -> Pool:
        return cls(
            sum(one.false_failures for one in outcomes),
            sum(one.wronged for one in outcomes),
            sum(one.starved_failures for one in outcomes),
            tuple(time for one in outcomes for time in one.first),
            tuple(time for one in outcomes for time in one.times),
            sum(one.events for one in outcomes),
            sum(one.wall for one in outcomes),
        )

    @property
    def median(self) -> float:
        return median(self.times or [math.nan])

    @property
    def late(self) -> float:
        """The 99th percentile."""
        return percentile(self.times or [math.nan], 0.99)


def median_mark(seeds: int) -> float:
    """The median that a pool of `seeds` runs may have, in seconds."""
    return MEDIAN if seeds >= MANY else OF_FEW


def run(
    seed: int,
    peers: int = 128,
    lifeguard: bool = True,
    preset: str = "wan",
    *,
    starved: int | None = None,
    killed: int | None = None,
    seconds: float = 180.0,
    longest: float = 60.0,
    loss: float = 0.0,
    config: MembershipConfig | None = None,
) -> Detection:
    """Play one seed.

    Args:
        starved, killed: numbers of members; by default an eighth and a sixteenth of `peers`.
        seconds: duration of the starvation. The deaths fall into its first two thirds.
        longest: longest block of a starved member in seconds. The shortest is 1 s; the scale is logarithmic.
        loss: share of messages that is lost.
        config: replaces the preset's.
    """
    began = time.perf_counter()
    config = replace(config or PRESETS[preset], lifeguard=lifeguard)
    latency = 0.04 if preset == "wan" else 0.002
    one = _Experiment(seed, config, peers, latency, loss)
    starved = peers // 8 if starved is None else starved
    one.form(starved, max(1, peers // 16) if killed is None else killed)
    one.disturb(seconds, longest)
    wrong, starved_failures, times = _judge(one)
    return Detection(
        seed,
        peers,
        lifeguard,
        preset,
        len(wrong),
        len(set(wrong)),
        starved_failures,
        tuple(min(of) for of in times),
        tuple(time for of in times for time in of),
        one.blocked / (seconds * starved or 1.0),
        one.network.events,
        time.perf_counter() - began,
    )


class _Experiment:
    """One network with its starved and killed members, and what members came to believe."""

    def __init__(self, seed: int, config: MembershipConfig, peers: int, latency: float, loss: float) -> None:
        self.network = Members(seed, config, peers, latency=latency, loss=loss, listen=self._listen)
        self.failures: list[tuple[float, Host, bytes]] = []
        """(time, observer, id of the member that it came to believe failed)"""
        self.died: dict[bytes, float] = {}
        """id -> time of death"""
        self.slow: list[Host] = []
        self.healthy: list[Host] = []
        self.blocked = 0.0
        """seconds, all starved members together"""
        self._victims: list[Host] = []
        self._script: Random = self.network.random("script")

    def _listen(self, host: Host, event: Event) -> None:
        if isinstance(event, MemberChanged) and event.member.state == State.FAILED:
            self.failures.append((self.network.now, host, event.member.id))

    def form(self, starved: int, killed: int) -> None:
        """Start all members, and draw which of them will starve and die."""
        network, script = self.network, self._script
        for host in network.hosts:
            network.at(script.random(), partial(network.start, host, network.hosts[:3]))
        network.run(FORMING)
        assert not self.failures, "a member was declared failed while the network formed"
        drawn = script.sample(network.hosts, starved + killed)
        self.slow, self._victims = drawn[:starved], drawn[starved:]
        self.healthy = [host for host in network.hosts if host not in drawn]

    def disturb(self, seconds: float, longest: float) -> None:
        """Starve and kill for `seconds`, then watch on."""
        network, script, end = self.network, self._script, FORMING + seconds

        def starve(host: Host) -> None:
            length = min(math.exp(script.uniform(0.0, math.log(longest))), end - network.now)
            if length > 0.0:
                self.blocked += length
                network.block(host, length)
                network.at(network.now + length + math.exp(script.uniform(math.log(0.01), 0.0)), lambda: starve(host))

        for host in self.slow:
            network.at(FORMING + script.random() * 5.0, partial(starve, host))
        for host in self._victims:
            network.at(FORMING + script.uniform(0.05, 0.66) * seconds, partial(self._kill, host))
        network.run(end + WATCHED)

    def _kill(self, host: Host) -> None:
        self.died[host.id] = self.network.now
        self.network.kill(host)


def _judge(one: _Experiment) -> tuple[list[bytes], int, list[list[float]]]:
    """Healthy members believed failed, each time; failures of starved members; times until each death was known."""
    wrong: list[bytes] = []
    starved_failures = 0
    known: dict[tuple[bytes, int], float] = {}
    slow = {host.id for host in one.slow}
    for at, observer, member in one.failures:
        if member in one.died and at >= one.died[member]:
            known.setdefault((member, observer.index), at - one.died[member])
        elif member in slow:
            starved_failures += 1
        else:
            wrong.append(member)
    times = [[known.get((member, host.index), math.inf) for host in one.healthy] for member in one.died]
    return wrong, starved_failures, times


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that is at least as large as `share` of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
