"""The simulated clock of a run: links, steps of hosts of several speeds, and bytes that they receive.

The laboratory trains real replicas on the same clock (`simulations.lab.core`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["FREE", "Conditions", "Counts", "Link", "Setting", "Timeline"]

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection of every peer to the network."""

    bandwidth: float = float("inf")
    """bytes per second, each way"""
    latency: float = 0.0
    """seconds, one way"""

    def seconds(self, size: float, turns: int = 1) -> float:
        """Seconds of a transfer of `size` bytes in `turns` messages, each of which waits for the one before."""
        return size / self.bandwidth + turns * self.latency


FREE: Final = Link()
"""takes no time"""


class Conditions(Protocol):
    """What the clock of a run depends on."""

    @property
    def peers(self) -> int:
        """N."""

    @property
    def every(self) -> int:
        """H: inner steps of a peer of speed 1 in one round."""

    @property
    def rounds(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def link(self) -> Link: ...

    @property
    def step_seconds(self) -> float:
        """Seconds of one inner step of a peer of speed 1."""

    @property
    def failing(self) -> float:
        """Share of exchanges that fail; of collectives, in a synchronous round."""

    @property
    def all_speeds(self) -> NDArray[np.float64]:
        """The speed of each peer, shape (N,)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The conditions of a plan. Fields are those of `Conditions`."""

    peers: int
    every: int
    rounds: int
    link: Link
    step_seconds: float
    speeds: tuple[float, ...]
    seed: int = 0
    failing: float = 0.0

    @property
    def all_speeds(self) -> NDArray[np.float64]:
        return np.array(self.speeds, np.float64)


class Timeline:
    """A clock, and counts of steps and bytes."""

    def __init__(self, setting: Conditions) -> None:
        self.setting: Conditions = setting
        self.seconds = 0.0
        """simulated seconds"""
        self.received: NDArray[np.float64] = np.zeros(setting.peers, np.float64)
        """bytes received by each peer, shape (N,)"""
        self.steps: Counts = np.zeros(setting.peers, np.int64)
        """inner steps of each peer, shape (N,)"""
        self.random = np.random.default_rng((setting.seed, 0x6C6162))
        """for methods: partners and the rounding of codecs"""

    @property
    def peers(self) -> int:
        return self.setting.peers

    def tick(self, peers: Counts | None) -> None:
        """One inner step of these peers; None for all."""
        self.steps[slice(None) if peers is None else peers] += 1

    def ticks(self, counts: int | Counts) -> Iterator[tuple[float, Counts | None]]:
        """Spread `counts` steps of every peer evenly over one period, because all peers share one learning rate.

        Returns:
            Per tick: the share of the period that has passed, and the peers that step (None for all).
        """
        each = np.broadcast_to(np.asarray(counts, np.int64), (self.peers,))
        most, equal = int(each.max()), bool((each == each[0]).all())
        for tick in range(most):
            due = None if equal else np.flatnonzero((tick + 1) * each // most > tick * each // most)
            yield tick / most, None if due is None or len(due) == self.peers else due

    def elapse(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self.seconds += seconds

    def set_clock(self, seconds: float) -> None:
        """Set the clock to this simulated time."""
        self.seconds = seconds

    def receive(self, size: float | NDArray[np.float64]) -> None:
        """Add `size` bytes, one number or one per peer, to what each peer received."""
        self.received += size
