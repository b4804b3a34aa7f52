"""How long a usual round of each way to train lasts on a network, and how many bytes it moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from gossipdp.codecs.blocks import BLOCK
from gossipdp.protocol.schema import MOST
from peers.plan.network import Network
from peers.plan.pairs import CountedPairs, PairOptions
from peers.plan.timeline import Counts, Link, Setting, Timeline

__all__ = [
    "BACKWARD",
    "DDP",
    "DILOCO",
    "FLOAT",
    "FOUR_BITS",
    "GOSSIP",
    "LOCAL_SGD",
    "OVERLAPPED",
    "WAYS",
    "Clock",
    "Overlap",
    "Round",
    "Way",
    "all_reduce",
    "clocked",
    "compute_seconds",
    "four_bit_all_reduce",
    "own_pace",
    "setting_of",
    "step_with_all_reduce",
    "tries",
]


FLOAT: Final = 4.0
"""bytes of one parameter in fp32"""
BACKWARD: Final = 2.0 / 3.0
"""share of a step in its backward pass, which hides the communication of data-parallel training"""


def compute_seconds(timeline: Timeline, steps: int = 1) -> float:
    """Seconds until the slowest peer has made `steps` steps."""
    return steps * timeline.setting.step_seconds / float(timeline.setting.all_speeds.min())


def own_pace(timeline: Timeline, every: int | None = None) -> Counts:
    """Steps of each peer while a peer of speed 1 makes `every` (H if None), shape (N,)."""
    steps = timeline.setting.every if every is None else every
    return np.maximum(1, np.rint(steps * timeline.setting.all_speeds)).astype(np.int64)


def tries(timeline: Timeline) -> int:
    """How often a collective is made until it succeeds."""
    return int(timeline.random.geometric(1.0 - timeline.setting.failing))


def all_reduce(timeline: Timeline, size: float, turns: int | None = None) -> float:
    """Seconds of an all-reduce of `size` bytes per peer.

    Each peer receives 2 (1 - 1/N) size bytes, the minimum (Patarasuk & Yuan 2009). Recursive halving and doubling takes
    2 ceil(log2 N) turns (Thakur et al. 2005). A ring takes 2 (N - 1), too many for internet latency. `turns` is 2 if
    each peer sends every other peer its part at once. A failed all-reduce is repeated whole.
    """
    count, made = timeline.peers, tries(timeline)
    share = 2.0 * (1.0 - 1.0 / count) * size
    timeline.receive(made * share)
    least = 2 * (count - 1).bit_length()
    return made * timeline.setting.link.seconds(share, least if turns is None else min(turns, least))


def four_bit_all_reduce(timeline: Timeline, parameters: int) -> float:
    """Seconds of an all-reduce in 4 bits with a bf16 scale for each block, in two turns."""
    return all_reduce(timeline, 0.5 * parameters + 2.0 * -(-parameters // BLOCK), turns=2)


def step_with_all_reduce(timeline: Timeline, size: float) -> None:
    """One step whose all-reduce of `size` bytes overlaps with the backward pass (Li et al. 2020, arXiv 2006.15704)."""
    step, transfer = compute_seconds(timeline), all_reduce(timeline, size)
    timeline.elapse(step + max(0.0, transfer - BACKWARD * step))


class Overlap:
    """When the collective of each round lands, while the next round trains."""

    def __init__(self) -> None:
        self._lands = 0.0
        """seconds"""

    def end_training(self, timeline: Timeline, began: float, lasts: float) -> None:
        """The steps of a round are made. A peer without the last round's mean waits for it."""
        timeline.set_clock(max(began + lasts, self._lands))

    def reduce(self, timeline: Timeline, collective: Callable[[], None]) -> float:
        """Begin a collective, which advances the clock; the peers train on. Returns when it lands, in seconds."""
        ended = timeline.seconds
        collective()
        self._lands = timeline.seconds
        timeline.set_clock(ended)
        return self._lands


UNUSUAL: Final = 8
"""rounds before a usual one: the first has finer codes, what overlaps lands later, and exchanges learn their length"""
ROUNDS: Final = 8
"""rounds whose mean counts, because exchanges that do not fit end in a later round"""
CHUNK_TURNS: Final = 2048
"""chunks of a round to play, roughly, over all hosts. A larger model is scaled down with its link"""
LEAST_CHUNKS: Final = 16


@dataclass(frozen=True)
class Way:
    """A way to train, as the laboratory knows it."""

    title: str
    method: str
    """a name of the laboratory's registry"""
    options: Mapping[str, Any] = field(default_factory=dict)
    own_pace: bool = False
    """a fast host makes more steps in a round; otherwise all make as many as the slowest"""


GOSSIP: Final = "gossip"
DILOCO: Final = "DiLoCo, fp32"
FOUR_BITS: Final = "DiLoCo, 4 bits"
OVERLAPPED: Final = "DiLoCo, 4 bits, overlap"
LOCAL_SGD: Final = "local SGD"
DDP: Final = "DDP, bf16"
WAYS: Final = {
    way.title: way
    for way in (
        # Early rounds make more exchanges. Most rounds of a run are later ones.
        Way(GOSSIP, "pairwise", {"early": 0.0}, own_pace=True),
        Way(DILOCO, "diloco", {"own_pace": True}, own_pace=True),
        Way(FOUR_BITS, "diloco-4bit", {"own_pace": True}, own_pace=True),
        Way(OVERLAPPED, "diloco-4bit-overlapped", {"own_pace": True}, own_pace=True),
        Way(LOCAL_SGD, "local-sgd"),
        Way(DDP, "ddp", {"half": True}),
    )
}


@dataclass(frozen=True)
class Round:
    """A usual round of a run, after its first ones. A mean where rounds differ."""

    seconds: float
    steps: tuple[float, ...]
    """that each host makes"""
    received: float
    """bytes that a host receives, and as many it sends"""
    exchange: float
    """seconds of a whole exchange between two peers; 0 where there is none"""


class Clock(Protocol):
    def __call__(self, network: Network, way: Way, every: int, bits: int) -> Round:
        """A usual round of `every` steps of the slowest host, with `bits` a parameter in exchanges of pairs."""


def clocked(network: Network, way: Way, every: int, bits: int) -> Round:
    """A usual round. Arguments as of `Clock`."""
    setting, parameters = setting_of(network, every)
    timeline = Timeline(setting)
    rounds: CountedPairs | Collective
    if way.method == "pairwise":
        rounds = pairs = CountedPairs(PairOptions(**way.options, bits=bits), parameters)
        pairs.begin(timeline)
    else:
        rounds = COLLECTIVES[way.method](parameters)
    for _ in range(UNUSUAL):
        rounds.round(timeline)
    seconds, steps, received = timeline.seconds, timeline.steps.copy(), timeline.received.copy()
    for _ in range(ROUNDS):
        rounds.round(timeline)
    grown = network.parameters / parameters
    return Round(
        seconds=(timeline.seconds - seconds) / ROUNDS,
        steps=tuple(float(count) / ROUNDS for count in timeline.steps - steps),
        received=float((timeline.received - received).mean()) * grown / ROUNDS,
        exchange=rounds.exchange_seconds,
    )


def setting_of(network: Network, every: int) -> tuple[Setting, int]:
    """The conditions of a run, and the parameters of the model that is counted.

    A large model is counted as one of fewer chunks of the same length, on a link that is narrower in proportion. A
    transfer of n bytes per parameter then lasts as long. Headers do not shrink, so they cost more here.
    """
    chunks = max(LEAST_CHUNKS, CHUNK_TURNS // network.hosts)
    parameters = min(network.parameters, chunks * MOST)
    # In these steps, because floating-point numbers round.
    bandwidth = network.bandwidth / 125_000.0 * 125_000.0 * parameters / network.parameters
    setting = Setting(
        peers=network.hosts,
        every=every,
        rounds=UNUSUAL + ROUNDS,
        link=Link(bandwidth=bandwidth, latency=1000.0 * network.latency / 1000.0),
        step_seconds=network.step_time,
        speeds=network.speeds,
    )
    return setting, parameters


class Collective(ABC):
    """Rounds in which a collective of all hosts carries a model of `parameters`."""

    exchange_seconds = 0.0

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters

    @abstractmethod
    def round(self, timeline: Timeline) -> None:
        """Play one round."""


class Ddp(Collective):
    """An all-reduce of gradients in bf16 each step."""

    def round(self, timeline: Timeline) -> None:
        for _ in range(timeline.setting.every):
            timeline.tick(None)
            step_with_all_reduce(timeline, 0.5 * FLOAT * self.parameters)


class LocalSgd(Collective):
    """An all-reduce of parameters after steps that all hosts make equally many of."""

    def round(self, timeline: Timeline) -> None:
        every = timeline.setting.every
        timeline.steps += every
        timeline.elapse(compute_seconds(timeline, every) + all_reduce(timeline, FLOAT * self.parameters))


class DiLoCo(Collective):
    """An all-reduce of differences after a round in which each host makes the steps that it can."""

    def round(self, timeline: Timeline) -> None:
        timeline.steps += own_pace(timeline)
        timeline.elapse(compute_seconds(timeline, timeline.setting.every))
        self._reduce(timeline)

    def _reduce(self, timeline: Timeline) -> None:
        timeline.elapse(all_reduce(timeline, FLOAT * self.parameters))


class FourBitDiLoCo(DiLoCo):
    """The same in 4 bits."""

    def _reduce(self, timeline: Timeline) -> None:
        timeline.elapse(four_bit_all_reduce(timeline, self.parameters))


class OverlappedDiLoCo(FourBitDiLoCo):
    """The same, while the next round trains."""

    def __init__(self, parameters: int) -> None:
        super().__init__(parameters)
        self._overlap = Overlap()

    def round(self, timeline: Timeline) -> None:
        timeline.steps += own_pace(timeline)
        self._overlap.end_training(timeline, timeline.seconds, compute_seconds(timeline, timeline.setting.every))
        self._overlap.reduce(timeline, lambda: self._reduce(timeline))


COLLECTIVES: Final[Mapping[str, Callable[[int], Collective]]] = {
    "ddp": Ddp,
    "local-sgd": LocalSgd,
    "diloco": DiLoCo,
    "diloco-4bit": FourBitDiLoCo,
    "diloco-4bit-overlapped": OverlappedDiLoCo,
}
"""by the laboratory's name of the method"""
