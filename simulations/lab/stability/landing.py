"""`pairwise` whose corrections land at chosen moments, with the daemon's last line of defence (algorithms 3b, 3c)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.swings import Swings
from gossipdp.codecs.base import Vector
from gossipdp.protocol.model import Outer
from gossipdp.protocol.rounds.pacing import ALONE_AFTER
from gossipdp.protocol.rounds.rounds import damped
from gossipdp.protocol.rounds.runaway import Runaway
from peers.plan.pairs import USUAL
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Dialogue, Replica

__all__ = ["GUARDS", "LandingOptions", "LandingPairwise"]

Drained: TypeAlias = Callable[[int, NDArray[np.float32], bool], None]
"""receives a peer, its x before the drain, shape (P,), and whether the drain is of its own outer step"""
GUARDS: Final = ("both", "g", "none")
"""both: as the daemon. g: without the last line of defence. none: without the measured share either"""


@dataclass(frozen=True, kw_only=True)
class LandingOptions(PairwiseOptions):
    lands: tuple[float, float] = (0.0, 0.0)
    """earliest and latest landing of an exchange after its begin, in rounds; each exchange draws its own"""
    warmup_steps: int = USUAL.warmup_steps
    guard: str = "both"
    """one of `GUARDS`"""


class _Blind(Swings):
    """Measures nothing."""

    def measure(self, chunk: int, x: Vector, late: Vector, a: Vector, part: float = 1.0) -> float:
        return 0.0


class Watched(Replica):
    """A replica that reports its drains, and steps as if alone while it runs away."""

    def __init__(self, replica: Replica, guard: str, drained: Drained) -> None:
        self.__dict__.update(vars(replica))
        self._guard, self._drained, self._steps = guard, drained, False
        self.runaway = Runaway()
        self.ran = 0
        """rounds in which it stepped as if alone"""
        self.end = self.x.copy()
        """x at the end of the last round, before its outer step"""
        if guard == "none":
            self.ledger._swings = _Blind([])

    @property
    def factor(self) -> float:
        """Factor of its wish for an exchange's weight."""
        return damped(self.gain) * self.runaway.share

    def outer(self, wanted: Outer) -> None:
        self.end, alone = self.x.copy(), self.alone >= ALONE_AFTER
        before = self.ledger.a.copy()
        length = _rms(before - self.x)
        self.ran += self.runaway.active
        self._steps = True
        super().outer(replace(wanted, lr=1.0, momentum=0.0, waits=False) if self.runaway.active else wanted)
        self._steps = False
        if self._guard == "both":
            movement = _rms(self.ledger.a - before)
            self.runaway.round_done(length / wanted.part, movement / wanted.part, alone=alone)

    def drain(self) -> None:
        before = self.x.copy()
        super().drain()
        self._drained(int.from_bytes(self.id, "big"), before, self._steps)


def _rms(values: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


class LandingPairwise(PairwiseGossip):
    """The method.

    Args:
        drained: called after each drain.
    """

    options: LandingOptions
    replicas: list[Watched]  # type: ignore[assignment]

    def __init__(
        self,
        options: LandingOptions,
        drained: Drained = lambda peer, before, own: None,
    ) -> None:
        super().__init__(options)
        self._drained = drained

    def begin(self, timeline: Lab) -> None:
        super().begin(timeline)
        for replica in self.replicas:
            replica.runaway.other_rounds()

    def _sides(self, lab: Lab) -> list[Replica]:
        self._moments = np.random.default_rng((lab.setting.seed, 0x6C616E64))
        return [Watched(side, self.options.guard, self._drained) for side in super()._sides(lab)]

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        factor = min(self.replicas[first].factor, self.replicas[second].factor)
        return replace(super()._dialogue(first, second, weight), weight=weight * factor)

    def _begin_exchange(self, timeline: Lab, first: int, second: int, weight: float) -> None:
        begun = self._exchanges
        super()._begin_exchange(timeline, first, second, weight)
        if self._exchanges > begun:
            exchange = self._open_exchanges[-1]
            exchange.until = math.inf
            exchange.delay(float(self._moments.uniform(*self.options.lands)) * self._duration)
