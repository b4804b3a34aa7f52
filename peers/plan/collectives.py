"""Rounds of methods in which all peers wait for a collective: its seconds and bytes, and when the next round begins.

A function that moves bytes adds them to what the peers received. A collective that fails does so at its end, so its
seconds and bytes are spent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gossipdp.codecs.base import BLOCK
from peers.plan.timeline import Counts, Timeline

__all__ = [
    "BACKWARD",
    "FLOAT",
    "Overlap",
    "all_reduce",
    "compute_seconds",
    "four_bit_all_reduce",
    "own_pace",
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
