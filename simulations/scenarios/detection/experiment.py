"""Are the dead found, and only they? Lifeguard against plain SWIM, with members starved of CPU (safety.md, T6).

    python -m simulations.scenarios.detection --seeds 5
    python -m simulations.scenarios.detection --seeds 8 --picture detection.png

N members know each other; then for three minutes some get no CPU but for moments: each is blocked for 1 to 60 s, runs
for 10 ms to 1 s, handles late whatever had come, and is blocked again (the interval experiment of Dadgar et al. 2018,
section V). Meanwhile some healthy members are killed. Both protocols are played with the same seeds, hence the same
members starved at the same times and the same ones killed.

A false failure is what that paper counts: somebody declares a member failed that is alive and runs as it should. A
starved member that is declared failed is counted apart: whoever is silent for a minute cannot be told from the dead,
and must not be if the dead are to be found sooner. Nothing of the protocol may stand here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from gossipdp.protocol.events import Event, MemberChanged
from gossipdp.protocol.membership.membership import PRESETS, MembershipConfig
from gossipdp.protocol.wire.messages import State
from simulations.scenarios.members import Host, Members

__all__ = ["Detection", "Pool", "median_mark", "percentile", "run"]

FORMING = 40.0
"""seconds for all to know each other"""
WATCHED = 60.0
"""seconds watched on after the starvation has ended"""
FEWER, MEDIAN, LATE = 50, 15.0, 60.0
"""T6's marks: so many times fewer false failures than plain SWIM; seconds until a member knows of a death, the median
and the 99th percentile, of many seeds together"""
MANY, OF_FEW = 4, 25.0
"""seeds, and the median that fewer may have: with eight deaths each, single seeds of 128 come to 12 to 19 s"""


@dataclass(frozen=True)
class Detection:
    """What one run came to. Times in seconds since the death, one for each dead member and each healthy observer."""

    seed: int
    peers: int
    lifeguard: bool
    preset: str
    false_failures: int
    """times that somebody came to believe a healthy live member failed"""
    wronged: int
    """healthy live members of whom somebody believed so"""
    starved_failures: int
    """the same of starved members"""
    first: tuple[float, ...]
    """until the first healthy member knew, one for each dead member"""
    times: tuple[float, ...]
    """until each healthy member knew; infinite if it never did"""
    blocked: float
    """share of the starved members' time in which they were blocked; 0 if none was starved"""
    events: int
    wall: float


@dataclass(frozen=True)
class Pool:
    """Runs of several seeds taken together: sums, and all times in one."""

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
        return percentile(self.times or [math.nan], 0.99)


def median_mark(seeds: int) -> float:
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
        starved, killed: members; an eighth and a sixteenth of `peers` unless told.
        seconds: how long the starvation lasts; the deaths fall into its first two thirds.
        longest: the longest block of a starved member; the shortest is 1 s, drawn evenly on a logarithmic scale.
        config: the preset's, changed.
    """
    began = time.perf_counter()
    config = replace(config or PRESETS[preset], lifeguard=lifeguard)
    events: list[tuple[float, Host, MemberChanged]] = []

    def listen(host: Host, event: Event) -> None:
        if isinstance(event, MemberChanged) and event.member.state == State.FAILED:
            events.append((network.now, host, event))

    network = Members(seed, config, peers, latency=0.04 if preset == "wan" else 0.002, loss=loss, listen=listen)
    script = network.random("script")
    for host in network.hosts:
        network.at(script.random(), partial(network.start, host, network.hosts[:3]))
    network.run(FORMING)
    assert not events, "somebody failed while the network formed"
    starved = peers // 8 if starved is None else starved
    drawn = script.sample(network.hosts, starved + (max(1, peers // 16) if killed is None else killed))
    slow, victims = drawn[:starved], drawn[starved:]
    end = FORMING + seconds
    blocked = 0.0

    def starve(host: Host) -> None:
        nonlocal blocked
        length = min(math.exp(script.uniform(0.0, math.log(longest))), end - network.now)
        if length > 0.0:
            blocked += length
            network.block(host, length)
            network.at(network.now + length + math.exp(script.uniform(math.log(0.01), 0.0)), lambda: starve(host))

    for host in slow:
        network.at(FORMING + script.random() * 5.0, partial(starve, host))
    died: dict[bytes, float] = {}

    def kill(host: Host) -> None:
        died[host.id] = network.now
        network.kill(host)

    for host in victims:
        network.at(FORMING + script.uniform(0.05, 0.66) * seconds, partial(kill, host))
    network.run(end + WATCHED)
    return _judge(
        Detection(
            seed, peers, lifeguard, preset, 0, 0, 0, (), (), blocked / (seconds * starved or 1.0), network.events,
            time.perf_counter() - began,
        ),
        [host for host in network.hosts if host not in drawn],
        {host.id for host in slow},
        died,
        events,
    )  # fmt: skip


def _judge(
    bare: Detection,
    healthy: Sequence[Host],
    slow: set[bytes],
    died: dict[bytes, float],
    events: Iterable[tuple[float, Host, MemberChanged]],
) -> Detection:
    wronged: list[bytes] = []
    starved_failures = 0
    known: dict[tuple[bytes, int], float] = {}
    for at, observer, event in events:
        member = event.member.id
        if member in died and at >= died[member]:
            known.setdefault((member, observer.index), at - died[member])
        elif member in slow:
            starved_failures += 1
        else:
            wronged.append(member)
    times = {member: [known.get((member, host.index), math.inf) for host in healthy] for member in died}
    return replace(
        bare,
        false_failures=len(wronged),
        wronged=len(set(wronged)),
        starved_failures=starved_failures,
        first=tuple(min(of) for of in times.values()),
        times=tuple(time for of in times.values() for time in of),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that is no smaller than `share` of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
