"""What a scenario is: a question, a plan from a seed, and what to read off the run; and the run itself, watched.

A scenario of whole peers is a `Plan`, so the same invariants hold in it as in any other run, and one that breaks them
shrinks like any other. Beside them it has marks: figures that must be reached, each with what was measured. Nothing of
the protocol may stand here, nor how a report is printed or drawn (`simulate`, `picture`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from gossipdp.protocol.events import ChunksInDoubt, Event, ExchangeEnded, SessionOpened, StateReady
from gossipdp.protocol.wire.messages import Message, State, StateChunk
from simulations.check import Check
from simulations.scenarios.shrink import Failure
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Record

__all__ = ["Act", "Findings", "Panel", "Report", "Scenario", "Watched", "percentile", "play"]

TICK = 1.0
"""seconds between two looks at everything"""


@dataclass(frozen=True)
class Panel:
    """One graph: lines over time unless `across` says what over."""

    title: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    log: bool = False
    mark: float | None = None
    """a level to be reached"""
    steps: bool = False
    bars: tuple[str, ...] = ()
    """names of the places 0, 1, ... if these are bars"""
    across: str = "virtual seconds"


@dataclass(frozen=True)
class Findings:
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    checks: Sequence[Check]
    panels: Sequence[Panel]
    spans: Sequence[tuple[float, float, str]] = ()
    """what happened when, to be shaded: from, to, what"""


@dataclass(frozen=True)
class Report:
    """What one run came to."""

    scenario: str
    question: str
    seed: int
    peers: int
    findings: Findings
    violation: str
    """the broken invariant, or \"\""""
    failure: Failure | None
    plan: Plan | None
    events: int
    seconds: float
    """virtual"""
    wall: float
    log_hash: str = ""
    seeds: int = 1
    """taken together, from `seed` on"""

    @property
    def of(self) -> str:
        """Which run this was."""
        seeds = f"seed {self.seed}" if self.seeds == 1 else f"seeds {self.seed} to {self.seed + self.seeds - 1}"
        return f"{self.scenario}, {seeds}, {self.peers} peers"

    @property
    def passed(self) -> bool:
        return not self.violation and all(check.passed for check in self.findings.checks)


@dataclass(frozen=True)
class Scenario:
    """Args:

    plan: of a seed and a number of peers.
    read: off the finished run.
    """

    name: str
    question: str
    peers: int
    plan: Callable[[int, int], Plan]
    read: Callable[[Watched], Findings]
    least: int = 2
    """peers"""


@dataclass(frozen=True)
class Act:
    """A part of the run that is looked at by itself."""

    name: str
    begins: float
    ends: float

    @property
    def minutes(self) -> float:
        return (self.ends - self.begins) / 60.0


@dataclass(frozen=True)
class Look:
    """How things stood at one moment."""

    at: float
    up: tuple[int, ...]
    ready: tuple[int, ...]
    seen: Mapping[int, int]
    """how many of those that are up each of them holds for alive, itself included"""
    failed: Mapping[int, frozenset[int]]
    """which of them each holds for failed"""
    distance: float
    """RMS of a_i - mean a per parameter"""
    steps: Mapping[int, int]
    """steps the daemon of each has been told of"""

    @property
    def wronged(self) -> int:
        """Pairs of live hosts, one of which holds the other for failed."""
        return sum(map(len, self.failed.values()))


@dataclass(frozen=True)
class Ended:
    """An exchange that mixed something; counted at its initiator."""

    at: float
    hosts: tuple[int, int]
    lasted: float


@dataclass
class Watched(Cluster):
    """A cluster that is looked at once a second, and remembers who exchanged with whom."""

    seed: int
    plan: Plan
    trace: Callable[[Record], None] | None = None
    looks: list[Look] = field(default_factory=list)
    exchanges: list[Ended] = field(default_factory=list)
    doubts: list[tuple[float, int]] = field(default_factory=list)
    """when how many chunks were counted as in doubt"""
    started: dict[tuple[int, int], float] = field(default_factory=dict)
    """(host, incarnation) -> when; so the others"""
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    trains: dict[tuple[int, int], float] = field(default_factory=dict)
    served: list[tuple[float, int]] = field(default_factory=list)
    """when who sent a chunk of its state"""

    def __post_init__(self) -> None:
        super().__init__(self.seed, self.plan, self.trace)
        self.network.at(0.0, "look", None, self._look)

    def start(self, host: Host) -> None:
        super().start(host)
        self.started[host.index, host.incarnation] = self.network.now

    def _passes(self, sender: Host, target: Host, message: Message) -> bool:
        if isinstance(message, StateChunk):
            self.served.append((self.network.now, sender.index))
        return super()._passes(sender, target, message)

    def _heard(self, host: Host, event: Event) -> None:
        super()._heard(host, event)
        now, life = self.network.now, (host.index, host.incarnation)
        match event:
            case ExchangeEnded() if event.chunks and event.initiator:
                self.exchanges.append(Ended(now, (host.index, self._index(event.partner)), event.duration))
            case ChunksInDoubt(_, count):
                self.doubts.append((now, count))
            case StateReady():
                self.ready.setdefault(life, now)
            case SessionOpened():
                self.trains.setdefault(life, now)

    def _index(self, peer: bytes) -> int:
        return next(host.index for host in self.network.hosts if host.id == peer)

    def _look(self) -> None:
        network = self.network
        network.at(network.now + TICK, "look", None, self._look)
        up = [host for host in network.hosts if host.peer is not None]
        ready = [host for host in up if host.running.ready]
        seen, failed = {}, {}
        for host in up:
            held = {other.index: _held(host, other) for other in up if other is not host}
            seen[host.index] = 1 + sum(state in (State.ALIVE, State.SUSPECT) for state in held.values())
            failed[host.index] = frozenset(other for other, state in held.items() if state == State.FAILED)
        self.looks.append(
            Look(
                network.now,
                tuple(host.index for host in up),
                tuple(host.index for host in ready),
                seen,
                failed,
                self.disagreement() ** 0.5 if ready else 0.0,
                {host.index: host.running.steps for host in up},
            )
        )

    # -- read off a finished run --------------------------------------------------------------------------------

    def between(self, act: Act) -> list[Look]:
        return [look for look in self.looks if act.begins <= look.at < act.ends]

    def rate(self, act: Act, hosts: Collection[int] | None = None, *, among: bool = False) -> float:
        """Exchanges a minute of a peer that is ready, or of one of `hosts`; each counts for both its sides.

        `among`: only those of two of `hosts`.
        """
        chosen = set(range(self.plan.peers)) if hosts is None else set(hosts)
        there = sum(len(chosen.intersection(look.ready)) for look in self.between(act))
        ended = (one for one in self.exchanges if act.begins <= one.at < act.ends)
        sides = sum(len(chosen & set(one.hosts)) for one in ended if not among or chosen >= set(one.hosts))
        return sides / (there * TICK / 60.0) if there else 0.0

    def in_doubt(self, act: Act) -> int:
        """Chunks counted as in doubt during the act."""
        return sum(count for at, count in self.doubts if act.begins <= at < act.ends)

    def pace(self, window: float = 10.0) -> tuple[list[float], list[float]]:
        """Exchanges a minute of a ready peer over time, each over `window` seconds around."""
        last = self.looks[-1].at
        times = [look.at for look in self.looks]
        rates = [self.rate(Act("", max(0.0, at - window / 2), min(last, at + window / 2))) for at in times]
        return times, rates

    def series(self, of: Callable[[Look], float]) -> tuple[list[float], list[float]]:
        return [look.at for look in self.looks], [of(look) for look in self.looks]

    def seen(self) -> dict[str, tuple[list[float], list[float]]]:
        """How many are up, and how many of these the best and the worst informed know."""
        return {
            "up": self.series(lambda look: float(len(look.up))),
            "known, the most": self.series(lambda look: float(max(look.seen.values(), default=0))),
            "known, the least": self.series(lambda look: float(min(look.seen.values(), default=0))),
        }

    def distance(self, act: Act) -> float:
        """The median over the act."""
        return median([look.distance for look in self.between(act)] or [float("nan")])

    def after(self, at: float, holds: Callable[[Look], bool]) -> float:
        """Seconds after `at` until `holds`, at the looks; infinite if never."""
        return next((look.at - at for look in self.looks if look.at >= at and holds(look)), float("inf"))


def _held(host: Host, other: Host) -> State | None:
    """What `host` thinks of `other` in its present life; None if it knows of an earlier one alone."""
    record = host.running.membership.members.get(other.id)
    return None if record is None or record.incarnation < other.incarnation else record.state


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share, method="higher")) if values else float("nan")


def play(
    scenario: Scenario,
    seed: int,
    peers: int | None = None,
    *,
    plan: Plan | None = None,
    trace: Callable[[Record], None] | None = None,
) -> Report:
    """Play a seed, or the plan given; a broken invariant is in the report, as far as the run came."""
    began = time.perf_counter()
    plan = plan or scenario.plan(seed, peers or scenario.peers)
    watched = Watched(seed, plan, trace)
    failure: Failure | None = None
    try:
        watched.run()
    except Exception as error:
        failure = Failure.of(error, watched.network.now)
    violation = f"{failure.text}, at {failure.at:.3f} s" if failure else ""
    findings = scenario.read(watched) if failure is None else _broken(watched)
    return Report(
        scenario.name,
        scenario.question,
        seed,
        plan.peers,
        findings,
        violation,
        failure,
        plan,
        watched.network.events,
        watched.network.now,
        time.perf_counter() - began,
        watched.network.log_hash,
    )


def _broken(watched: Watched) -> Findings:
    """Of a run that did not come to its end: how far it came."""
    books = watched.books
    row: tuple[Any, ...] = (books.exchanges, books.mixed, books.rounds, sum(books.doubts.values()))
    return Findings(
        ("exchanges", "chunks mixed", "rounds", "in doubt"),
        [tuple(map(str, row))],
        (),
        [
            Panel("members", watched.seen(), steps=True),
            Panel("distance", {"distance": watched.series(lambda look: look.distance)}, log=True),
        ],
    )
