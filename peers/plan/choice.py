"""Chooses the length of each way's round, and gossip's settings, by the rules of docs/choosing.md.

A round of gossip has the default number of steps, or as many more as an exchange needs to fill 0.9 of it. The others
have as few as lose no more time than the user accepts. None has more than `MOST_STEPS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gossipdp.codecs.blocks import BLOCK
from gossipdp.config import Config
from gossipdp.config_loading import load
from gossipdp.protocol.schema import chunk_parameters
from gossipdp.runtime.memory_need import MemoryPlan
from peers.home import presets
from peers.plan.clock import DDP, DILOCO, FOUR_BITS, GOSSIP, LOCAL_SGD, OVERLAPPED, WAYS, Clock, Round, Way
from peers.plan.network import Network

__all__ = ["CROWDED", "FULLEST", "MOST_STEPS", "Plan", "Row", "memory", "plan_for", "usual_config"]

FULLEST: Final = 0.9
"""share of a round that an exchange may fill (docs/choosing.md, `every`)"""
CROWDED: Final = 0.5
"""share from which lower momentum suits a long run (docs/choosing.md, settings by fill)"""
MOMENTUM: Final = 0.4
STRIDE: Final = 10
"""rounds have a multiple of this number of steps"""
MOST_STEPS: Final = 1000
"""steps of a round, at most: twice DiLoCo's published 500 (arXiv 2311.08105)"""
MOST_WINDOW: Final = 256
CROSSINGS: Final = 4
"""messages of a chunk that wait for each other: ranges, codes, codes, acknowledgement (algorithms section 3)"""


@dataclass(frozen=True)
class Row:
    """What one way costs."""

    way: Way
    every: int
    """steps of a round of the median host; 1 if every step waits for the network"""
    round: Round
    lost: float
    """share of all hosts' time in which they compute nothing"""
    link: float
    """the same of the slowest host, which waits for the network alone"""
    bytes: float
    """that a host sends in an hour"""
    memory: float


@dataclass(frozen=True)
class Plan:
    """All ways on one network."""

    network: Network
    accepted: float
    rows: Mapping[str, Row]
    default: Row
    """gossip with the default number of steps a round"""
    short: Row
    """DiLoCo that waits, at 4 bits, with the default number of steps a round"""
    fill: float
    """share of a round that one exchange takes"""
    default_fill: float
    """the same with the default number of steps"""
    settings: Mapping[str, float]
    """"section.key" -> value"""
    window: int
    """chunks in flight that this path needs; more than `exchange.window` may be if no window fills it"""


def usual_config() -> Config:
    """The configuration of a run file that sets nothing."""
    return load(presets=presets())


def plan_for(network: Network, clock: Clock, accepted: float) -> Plan:
    """The plan of a network.

    Args:
        accepted: share of all hosts' time that may be lost, 0 to 1.
    """
    exchange = usual_config().exchange
    needed = window_for(network, exchange.bits)
    window = exchange.window
    while window < min(needed, MOST_WINDOW):
        window *= 2
    planner = Planner(network, clock, exchange.bits, window)
    default = planner.row(WAYS[GOSSIP], exchange.every)
    wanted = default.round.exchange / (FULLEST * planner.typical_step)
    every = exchange.every if wanted <= exchange.every else min(MOST_STEPS, STRIDE * math.ceil(wanted / STRIDE))
    rows = {GOSSIP: default if every == exchange.every else planner.row(WAYS[GOSSIP], every)}
    for title, way in WAYS.items():
        if title == DDP:
            rows[title] = planner.row(way, 1)
        elif title != GOSSIP:
            rows[title] = planner.shortest(way, exchange.every, accepted)
    fill = rows[GOSSIP].round.exchange / (every * planner.typical_step)
    settings: dict[str, float] = {
        "exchange.every": every,
        "exchange.bits": exchange.bits,
        "exchange.window": min(window, MOST_WINDOW),
    }
    if fill >= CROWDED:
        settings["outer.momentum"] = MOMENTUM
    return Plan(
        network=network,
        accepted=accepted,
        rows=rows,
        default=default,
        short=planner.row(WAYS[FOUR_BITS], exchange.every),
        fill=fill,
        default_fill=default.round.exchange / (exchange.every * planner.typical_step),
        settings=settings,
        window=needed,
    )


def window_for(network: Network, bits: int) -> int:
    """Chunks in flight that keep the link busy each way, and no more than the model has."""
    width = chunk_parameters(network.parameters)
    chunk = min(network.parameters, width) * bits / 8.0
    in_flight = CROSSINGS * network.latency * network.bandwidth / chunk
    # While two chunks' codes are on their way, the others cross.
    return min(math.ceil(in_flight) + 2, math.ceil(network.parameters / width))


@dataclass(frozen=True)
class Planner:
    """Asks the clock for rounds of the median host's steps."""

    network: Network
    clock: Clock
    bits: int
    window: int

    @property
    def typical_step(self) -> float:
        """Seconds of a step of the median host."""
        return self.network.step_time / self.network.typical

    def row(self, way: Way, every: int) -> Row:
        """What a way costs.

        Args:
            every: steps of the median host; where all make as many, of each.
        """
        network = self.network
        steps = max(1, round(every / network.typical)) if way.own_pace else every
        found = self.clock(network, way, steps, self.bits)
        # Rounded to whole steps, a fast host's may take up to half a step longer than the round.
        busy = [
            min(1.0, count * network.step_time / speed / found.seconds)
            for count, speed in zip(found.steps, network.speeds, strict=True)
        ]
        return Row(
            way=way,
            every=every,
            round=found,
            lost=_share(1.0 - sum(busy) / len(busy)),
            link=_share(1.0 - busy[0]),
            bytes=found.received / found.seconds * 3600.0,
            memory=memory(way.title, network.parameters, self.window),
        )

    def shortest(self, way: Way, least: int, accepted: float) -> Row:
        """The row of the fewest steps, from `least` to `MOST_STEPS`, that lose no more than `accepted`."""
        low, high = least, MOST_STEPS
        if (row := self.row(way, low)).link <= accepted:
            return row
        if (best := self.row(way, high)).link > accepted:
            return best
        while high - low > STRIDE:
            middle = (low + high) // 2 // STRIDE * STRIDE
            if (row := self.row(way, middle)).link <= accepted:
                high, best = middle, row
            else:
                low = middle
        return best


def _share(value: float) -> float:
    """A share of time without the error of its sums."""
    return max(0.0, round(value, 9))


# -- memory --------------------------------------------------------------------------------------------------------

COPY: Final = 4.0
"""one fp32 vector, bytes a parameter"""
CODES: Final = 0.5 + 2.0 / BLOCK
"""a vector in 4 bits, with a bf16 scale a block"""
KEPT: Final[Mapping[str, float]] = {
    DILOCO: 3 * COPY,
    FOUR_BITS: 3 * COPY + 2 * CODES,
    # The snapshot waits for the mean. The difference goes straight to codes.
    OVERLAPPED: 3 * COPY + 2 * CODES,
    LOCAL_SGD: COPY,
    DDP: COPY,
}
"""bytes a parameter: DiLoCo's theta, v and Delta; DDP's buckets (torch keeps them unless gradient_as_bucket_view)"""


def memory(way: str, parameters: int, window: int) -> float:
    """Bytes on a host.

    Args:
        way: a title of `WAYS`.
        window: chunks of an exchange in flight.
    """
    if way == GOSSIP:
        return float(MemoryPlan(window=window).need(parameters).total)
    return KEPT[way] * parameters
