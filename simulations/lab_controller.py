"""`pairwise` in the laboratory under the daemon's own consensus-distance controller.

Every replica has a `gossipdp.protocol.controller.Controller`, which hears what its daemon would tell it, from the same
jobs: how far the anchor moved in an outer step, and how far apart an exchange found two anchors. It decides for itself
on momentum and on a second exchange. H is the one thing that a laboratory in which all rounds begin at the same moment
cannot give to each: that of the median replica is everybody's. No rule of the controller may stand here.
"""

from __future__ import annotations

import math

import numpy as np

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.controller import Controller
from gossipdp.protocol.phases import ALONE_AFTER, exchanges_per_round
from gossipdp.protocol.rounds import Outer
from simulations.lab import Lab
from simulations.lab_methods import PairwiseGossip, PairwiseOptions
from simulations.lab_replica import Replica

__all__ = ["ControlledGossip"]


class _Watched(Pairwise):
    """What its jobs come to is told to the controller."""

    replica: Replica
    """whose this is; to be set"""

    def __init__(self, *, clip: float, acts: bool) -> None:
        super().__init__(clip=clip)
        self._acts = acts
        self.controller = Controller()
        self.relax = False
        self._movement2 = self._distance2 = 0.0
        self._exchange, self._chunks = 0, 0

    def run(self, job: jobs.Job) -> jobs.Result:
        if isinstance(job, jobs.OuterStep):
            momentum = min(job.momentum, self.controller.terms.momentum)
            result = super().run(jobs.OuterStep(job.chunk, job.lr, momentum, job.applied, job.part))
            self._moved(job.chunk, result)
            return result
        result = super().run(job)
        if isinstance(job, jobs.DecodeAndMix | jobs.Mix) and result.mixed:
            self._mixed_chunk(job.key.exchange, result.distance2)
        return result

    def _moved(self, chunk: int, stepped: jobs.Stepped) -> None:
        self._movement2 = stepped.movement2 + (self._movement2 if chunk else 0.0)
        if chunk + 1 < self.ledger.chunks:
            return
        # As the daemon's `Pacing` does when a round is done.
        if self.replica.alone + 1 >= ALONE_AFTER:
            self.controller.forget()
        else:
            self.controller.stepped(self._rms(self._movement2))
            if self._acts:
                self.controller.settle(relax=self.relax)

    def _mixed_chunk(self, exchange: int, distance2: float) -> None:
        if exchange != self._exchange:
            self._exchange, self._chunks, self._distance2 = exchange, 0, 0.0
        self._chunks += 1
        self._distance2 += distance2
        if self._chunks == self.ledger.chunks:
            self.controller.exchanged(self._rms(self._distance2))

    def _rms(self, norm2: float) -> float:
        return math.sqrt(norm2 / len(self.ledger.a))


class ControlledGossip(PairwiseGossip):
    """The method. `levels` and `ratios` tell of each lab round: the mean over replicas at its end.

    Args:
        acts: if false, it measures and changes nothing, as in a daemon with `controller = "off"`.
    """

    def __init__(
        self, options: PairwiseOptions | None = None, name: str = "pairwise, controlled", *, acts: bool = True
    ) -> None:
        super().__init__(options, name)
        self._acts = acts
        if self.options.fragments != 1 or self.options.warmup_steps:
            raise ValueError(
                "the controller needs exchanges of the whole vector, and no warm-up but the laboratory's own"
            )
        self._watched: list[_Watched] = []
        self._every = self._owed = 0
        """H of the round before, and steps that the laboratory has asked for and that no round has made yet"""
        self.levels: list[float] = []
        self.ratios: list[float] = []

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        for replica, watched in zip(self.replicas, self._watched, strict=True):
            watched.replica = replica
        self._every = lab.setting.every

    def _algorithm(self, peer: int) -> Pairwise:
        self._watched.append(_Watched(clip=self.options.clip, acts=self._acts))
        return self._watched[-1]

    def round(self, lab: Lab) -> None:
        """As many steps as `Setting.every`, in rounds of the controllers' H; what is left over waits for the next."""
        options = self.options
        early = lab.progress < options.early
        usual = options.early_exchanges or exchanges_per_round(lab.peers, early=True) if early else options.exchanges
        power = lab.peers & (lab.peers - 1) == 0
        follows = options.schedule == "base2" or (options.schedule == "hypercube" and early and power)
        for one in self._watched:
            one.relax = not early
        self._owed += lab.setting.every
        while self._owed >= (every := self._median_every(lab)):
            if every != self._every:
                self._every = every
                self._fine.add(self._rounds + 1)
            self._owed -= every
            steady = not any(one.controller.level for one in self._watched)
            self._play(lab, every, Outer(options.lr, options.momentum), usual, scheduled=follows and steady)
        self.levels.append(float(np.mean([one.controller.level for one in self._watched])))
        self.ratios.append(float(np.mean([one.controller.ratio for one in self._watched])))

    def _median_every(self, lab: Lab) -> int:
        factors = sorted(one.controller.terms.every for one in self._watched)
        return max(1, round(lab.setting.every * factors[len(factors) // 2]))

    def _free(self) -> list[int]:
        more = [one.controller.terms.exchanges for one in self._watched] or [0] * len(self.replicas)
        return [
            peer
            for peer, one in enumerate(self.replicas)
            if not one.busy and self._steps[peer] < self._until + (0 if self._scheduled else more[peer])
        ]
