"""`pairwise` in the laboratory: the daemon's own algorithm, codecs and schedule, on replicas in one process.

Every replica has a `gossipdp.algorithms.pairwise.Pairwise` whose training process is a row of `lab.x`. Every exchange
runs the jobs that two daemons would run, in messages encoded as on the wire. `peers.plan.pairs` decides which peers
meet and when. This module holds no equation of `pairwise` and no other method (see `baselines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.config import AUTO_CLIP
from gossipdp.protocol.rounds.rounds import damped
from peers.plan.pairs import PairClock, PairOptions
from simulations.lab.core import Lab
from simulations.lab.methods.replica import Dialogue, Replica

__all__ = ["PairwiseGossip", "PairwiseOptions"]


@dataclass(frozen=True, kw_only=True)
class PairwiseOptions(PairOptions):
    """Options of the method. The defaults are the daemon's (algorithms section 3)."""

    clip: float = AUTO_CLIP
    """clipping factor; infinite for none"""


class PairwiseGossip(PairClock[Lab, Replica, PairwiseOptions]):
    """The method. `tally` counts its exchanges. Tests may look at `replicas`."""

    def __init__(self, options: PairwiseOptions | None = None, name: str = "pairwise") -> None:
        super().__init__(options or PairwiseOptions())
        self.name = name

    def _sides(self, lab: Lab) -> list[Replica]:
        return [Replica(number, lab.x[number], self._algorithm()) for number in range(lab.peers)]

    def _algorithm(self) -> Pairwise:
        """The algorithm of a peer that begins."""
        return Pairwise(clip=self.options.clip)

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        one, other = self.replicas[first], self.replicas[second]
        number, pull = (1 << 32) + self._exchanges, self._pull_of(first, second)
        if not self._closing:
            weight *= damped(max(one.gain, other.gain))
        return Dialogue(one, other, number, self._codec, weight, pull)

    def finish(self, lab: Lab) -> float:
        """End the run as `gossipdp finish` does: without lookaheads, by exchanges until all hold the mean.

        Returns:
            Mean held-out loss of the models that the hosts hold then.
        """
        return self._finish(lab, range(lab.peers))

    def _finish(self, lab: Lab, among: Sequence[int]) -> float:
        for peer in among:
            self.replicas[peer].rest()
        self._close(lab, among)
        return float(np.mean([lab.problem.evaluate(lab.x[peer]).loss for peer in among]))

    def model(self, lab: Lab) -> Tensor:
        """The mean of the anchors, which mixing does not change."""
        return torch.from_numpy(np.mean([replica.ledger.a for replica in self.replicas], 0))
