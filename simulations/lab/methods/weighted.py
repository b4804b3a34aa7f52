"""A trial: hosts weigh in `pairwise` by the samples of their steps. The trial is not in the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol.model import Outer
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Replica

__all__ = ["WeightedGossip"]


class _Weighted(Replica):
    """A replica whose progress counts `weight` times in the mean.

    The weight multiplies alpha of its own outer step. Exchanges are as before, so they keep the sum of all anchors.
    """

    def __init__(self, number: int, x: Tensor, algorithm: Pairwise, weight: float) -> None:
        super().__init__(number, x, algorithm)
        self._weight = weight

    def outer(self, wanted: Outer) -> None:
        super().outer(replace(wanted, lr=wanted.lr * self._weight))


class WeightedGossip(PairwiseGossip):
    """`pairwise` with a weight for each host.

    Args:
        weights: of the peers, repeated up to N. They count relative to their mean.
    """

    def __init__(self, options: PairwiseOptions | None = None, *, weights: Sequence[float]) -> None:
        super().__init__(options, "pairwise, weighted")
        self._weights = np.array(weights) / np.mean(weights)

    def _sides(self, lab: Lab) -> list[Replica]:
        weights = np.resize(self._weights, lab.peers)
        return [_Weighted(peer, lab.x[peer], self._algorithm(), float(weights[peer])) for peer in range(lab.peers)]
