"""`pairwise` in the laboratory under the daemon's own consensus-distance controller, and the runs that compare the two.

    python -m simulations.lab_controller --peers 8 --seeds 3

Every replica has a `gossipdp.protocol.controller.Controller`, which hears what its daemon would tell it, from the same
jobs: how far the anchor moved in an outer step, and how far apart an exchange found two anchors. It decides for itself
on momentum and on a second exchange. H is the one thing that a laboratory in which all rounds begin at the same moment
cannot give to each: that of the median replica is everybody's. No rule of the controller may stand here.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.controller import Controller
from gossipdp.protocol.pacing import ALONE_AFTER
from gossipdp.protocol.partners import exchanges_per_round
from gossipdp.protocol.rounds import Outer
from simulations.lab import Curve, Lab, Link, Setting, play
from simulations.lab_methods import PairwiseGossip, PairwiseOptions
from simulations.lab_problems import ByteMlp
from simulations.lab_replica import Replica

__all__ = ["CASES", "Case", "ControlledGossip", "compare"]


class _Watched(Pairwise):
    """Takes the place of a replica's algorithm, with its vectors; what its jobs come to is told to the controller."""

    def __init__(self, replica: Replica, *, acts: bool) -> None:
        super().__init__(clip=replica.algorithm.clip)
        vars(self).update(vars(replica.algorithm))
        self._replica, self._acts = replica, acts
        self.controller = Controller()
        self.relax = False
        self._movement2 = self._distance2 = 0.0
        self._exchange, self._chunks = 0, 0

    def run(self, job: jobs.Job) -> jobs.Result:
        if isinstance(job, jobs.OuterStep):
            momentum = min(job.momentum, self.controller.terms.momentum)
            result = super().run(jobs.OuterStep(job.chunk, job.lr, momentum, job.applied))
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
        if self._replica.alone + 1 >= ALONE_AFTER:
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
        if self.options.fragments != 1:
            raise ValueError("the controller needs exchanges of the whole vector")
        self._watched: list[_Watched] = []
        self._every = self._owed = 0
        """H of the round before, and steps that the laboratory has asked for and that no round has made yet"""
        self.levels: list[float] = []
        self.ratios: list[float] = []

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        for peer in self.replicas:
            watched = _Watched(peer, acts=self._acts)
            peer.algorithm = watched
            self._watched.append(watched)
        self._every = lab.setting.every

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
                self._every, self._fine_until = every, self._rounds + 1
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


@dataclass(frozen=True)
class Case:
    """Under which conditions the controller is compared with its absence; how many peers is the caller's."""

    setting: Setting
    problem: ByteMlp
    options: PairwiseOptions


CASES: Final = {
    "warm start, mu 0.8, H 20": Case(
        Setting(peers=8, every=20, rounds=40, lr=3e-3, warmup=100), ByteMlp(), PairwiseOptions(momentum=0.8)
    ),
    "cold start, mu 0.9, H 60": Case(
        Setting(peers=8, every=60, rounds=40, lr=3e-3), ByteMlp(batch=16), PairwiseOptions(momentum=0.9)
    ),
    "the same, no early rounds, Dirichlet 0.1": Case(
        Setting(peers=8, every=60, rounds=40, lr=3e-3),
        ByteMlp(batch=16, dirichlet=0.1),
        PairwiseOptions(momentum=0.9, early=0.0),
    ),
}
LINK: Final = Link(bandwidth=12.5e6, latency=0.04)
"""100 Mbit/s, 80 ms there and back"""


def methods(usual: PairwiseOptions) -> list[ControlledGossip]:
    """Off, on, and what the first level would be if it were simply configured."""
    return [
        ControlledGossip(usual, "off", acts=False),
        ControlledGossip(usual, "on"),
        ControlledGossip(replace(usual, exchanges=2), "off, two exchanges", acts=False),
    ]


def compare(case: Case, peers: int, seed: int) -> list[tuple[Curve, ControlledGossip]]:
    """One run of each method."""
    setting = replace(case.setting, peers=peers, seed=seed, link=LINK, evaluate_every=case.setting.rounds)
    return [(play(case.problem, method, setting), method) for method in methods(case.options)]


def _row(name: str, runs: list[tuple[Curve, ControlledGossip]]) -> str:
    def spread(values: list[float], digits: int) -> str:
        return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.{digits}f}"

    last = [curve.last for curve, _ in runs]
    rounds = [curve.last.bytes - curve.points[0].bytes for curve, _ in runs]
    half = [(method.ratios[len(method.ratios) // 2 :], method.levels) for _, method in runs]
    return (
        f"| {name} | {runs[0][0].method} | {spread([point.loss for point in last], 3)} "
        f"| {spread([point.replica_loss for point in last], 3)} | {spread(rounds, 1)} "
        f"| {spread([point.distance for point in last], 2)} "
        f"| {np.mean([np.nanmean(ratios) for ratios, _ in half]):.2f} "
        f"| {np.mean([levels[-1] for _, levels in half]):.1f} | {np.mean([point.steps for point in last]):.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append", help="all, unless given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | controller | loss | replica's loss | B/parameter | consensus distance | R | level | steps |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.case or CASES:
        runs = [compare(CASES[name], arguments.peers, seed) for seed in range(arguments.seeds)]
        for of in zip(*runs, strict=True):
            print(_row(f"{name}, N {arguments.peers}", list(of)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
