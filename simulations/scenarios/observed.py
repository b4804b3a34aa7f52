"""A cluster that records its state once a second, for the tables and graphs of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median

from gossipdp.protocol.events import ChunksInDoubt, Event, ExchangeEnded, SessionOpened, StateReady
from gossipdp.protocol.wire.messages import Message, State, StateChunk
from simulations.scenarios.findings import Panel
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Record

__all__ = ["Act", "EndedExchange", "Observation", "ObservedCluster"]

TICK = 1.0
"""virtual seconds between two observations"""


@dataclass(frozen=True)
class Act:
    """A named part of the run. Times in virtual seconds."""

    name: str
    begins: float
    ends: float

    @property
    def minutes(self) -> float:
        return (self.ends - self.begins) / 60.0


@dataclass(frozen=True)
class Observation:
    """State of the network at one moment. Hosts are numbers."""

    at: float
    up: tuple[int, ...]
    """hosts whose daemon runs"""
    ready: tuple[int, ...]
    """hosts that have the model"""
    seen: Mapping[int, int]
    """host -> how many running hosts it believes alive, itself included"""
    failed: Mapping[int, frozenset[int]]
    """host -> running hosts that it believes failed"""
    distance: float
    """root mean square distance of the anchors from their mean, per parameter"""
    steps: Mapping[int, int]
    """host -> training steps that its daemon knows of"""

    @property
    def falsely_failed(self) -> int:
        """Pairs of running hosts of which one believes the other failed."""
        return sum(map(len, self.failed.values()))


@dataclass(frozen=True)
class EndedExchange:
    """An exchange that mixed at least one chunk. The initiator counts it."""

    at: float
    hosts: tuple[int, int]
    duration: float
    """virtual seconds"""


class ObservedCluster(Cluster):
    """A cluster that is observed every `TICK` seconds."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[Record], None] | None = None) -> None:
        self.observations: list[Observation] = []
        self.exchanges: list[EndedExchange] = []
        self.doubts: list[tuple[float, int]] = []
        """(time, chunks counted as in doubt)"""
        self.started_at: dict[tuple[int, int], float] = {}
        """(host, incarnation) -> time; likewise the next two"""
        self.ready_at: dict[tuple[int, int], float] = {}
        self.trains_at: dict[tuple[int, int], float] = {}
        self.served: list[tuple[float, int]] = []
        """(time, host) of each state chunk that was sent"""
        super().__init__(seed, plan, trace)
        self.network.at(0.0, "look", None, self._observe)

    def start(self, host: Host) -> None:
        super().start(host)
        self.started_at[host.index, host.incarnation] = self.network.now

    def _passes(self, sender: Host, target: Host, message: Message) -> bool:
        if isinstance(message, StateChunk):
            self.served.append((self.network.now, sender.index))
        return super()._passes(sender, target, message)

    def _heard(self, host: Host, event: Event) -> None:
        super()._heard(host, event)
        now, life = self.network.now, (host.index, host.incarnation)
        match event:
            case ExchangeEnded() if event.chunks and event.initiator:
                self.exchanges.append(EndedExchange(now, (host.index, self._index(event.partner)), event.duration))
            case ChunksInDoubt(_, count):
                self.doubts.append((now, count))
            case StateReady():
                self.ready_at.setdefault(life, now)
            case SessionOpened():
                self.trains_at.setdefault(life, now)

    def _index(self, peer: bytes) -> int:
        return next(host.index for host in self.network.hosts if host.id == peer)

    def _observe(self) -> None:
        network = self.network
        network.at(network.now + TICK, "look", None, self._observe)
        up = [host for host in network.hosts if host.peer is not None]
        ready = [host for host in up if host.running.view.ready]
        seen, failed = {}, {}
        for host in up:
            believed = {other.index: _believed(host, other) for other in up if other is not host}
            seen[host.index] = 1 + sum(state in (State.ALIVE, State.SUSPECT) for state in believed.values())
            failed[host.index] = frozenset(other for other, state in believed.items() if state == State.FAILED)
        self.observations.append(
            Observation(
                network.now,
                tuple(host.index for host in up),
                tuple(host.index for host in ready),
                seen,
                failed,
                self.disagreement() ** 0.5 if ready else 0.0,
                {host.index: host.running.view.steps for host in up},
            )
        )

    # -- figures of a finished run ------------------------------------------------------------------------------

    def between(self, act: Act) -> list[Observation]:
        """Observations during the act."""
        return [one for one in self.observations if act.begins <= one.at < act.ends]

    def exchange_rate(self, act: Act, hosts: Collection[int] | None = None, *, among: bool = False) -> float:
        """Exchanges per minute of one ready peer. An exchange counts for both of its sides.

        Args:
            hosts: the peers to count; all by default.
            among: count only exchanges between two of `hosts`.
        """
        chosen = set(range(self.plan.peers)) if hosts is None else set(hosts)
        there = sum(len(chosen.intersection(one.ready)) for one in self.between(act))
        ended = (one for one in self.exchanges if act.begins <= one.at < act.ends)
        sides = sum(len(chosen & set(one.hosts)) for one in ended if not among or chosen >= set(one.hosts))
        return sides / (there * TICK / 60.0) if there else 0.0

    def in_doubt(self, act: Act) -> int:
        """Chunks that peers counted as in doubt during the act."""
        return sum(count for at, count in self.doubts if act.begins <= at < act.ends)

    def distance(self, act: Act) -> float:
        """Median distance of the replicas during the act."""
        return median([one.distance for one in self.between(act)] or [float("nan")])

    def falsely_failed(self) -> int:
        """Sum over all observations of running hosts that another believes failed."""
        return sum(one.falsely_failed for one in self.observations)

    def seconds_until(self, holds: Callable[[Observation], bool], *, since: float) -> float:
        """Seconds from `since` to the first observation for which `holds`; infinite if there is none."""
        return next((one.at - since for one in self.observations if one.at >= since and holds(one)), float("inf"))

    # -- graphs -------------------------------------------------------------------------------------------------

    def series(self, of: Callable[[Observation], float]) -> tuple[list[float], list[float]]:
        """Times, and the value of each observation."""
        return [one.at for one in self.observations], [of(one) for one in self.observations]

    def exchange_rates(self, window: float = 10.0) -> tuple[list[float], list[float]]:
        """Times, and exchanges per minute of a ready peer in the `window` seconds around each."""
        last = self.observations[-1].at
        times = [one.at for one in self.observations]
        half = window / 2
        return times, [self.exchange_rate(Act("", max(0.0, at - half), min(last, at + half))) for at in times]

    def members_panel(self) -> Panel:
        """Running peers, and how many of them the best and the worst informed peer know."""
        return Panel(
            "members up, and known to the others",
            {
                "up": self.series(lambda one: float(len(one.up))),
                "known, the most": self.series(lambda one: float(max(one.seen.values(), default=0))),
                "known, the least": self.series(lambda one: float(min(one.seen.values(), default=0))),
            },
            steps=True,
        )

    def distance_panel(self) -> Panel:
        """Distance of the replicas over time."""
        title = "RMS distance of the replicas from their mean"
        return Panel(title, {"distance": self.series(lambda one: one.distance)}, log=True)


def _believed(host: Host, other: Host) -> State | None:
    """State that `host` believes of the present life of `other`. None if it knows only earlier lives."""
    record = host.running.view.members.get(other.id)
    return None if record is None or record.incarnation < other.incarnation else record.state
