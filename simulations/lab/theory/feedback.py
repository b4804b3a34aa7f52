"""The outer loop of two peers along one eigenvalue of the loss, round by round (algorithms section 3b).

The inner optimizer learns from x = a - p, where p is the correction of the last outer step. It is 0 unless it waits for
the exchange. That lands within the round, with p, and the outer step ends the round. The difference of the peers
follows a linear map of (a, v, u, p), u the inner momentum, and grows by the largest root of its characteristic
polynomial. The mean of the peers has the same map without mixing.

    h       learning rate times eigenvalue         learnt   share of an error that a round removes
    lands   moment of the exchange, in rounds      taken    share of a correction that is taken back before the snapshot

Without inner momentum, and where p does not wait, D = (learnt - 2 gamma taken) a. With delta = learnt - 2 gamma taken
the polynomial is

    z^2 - (1 - 2 gamma - alpha delta - 2 mu^2 kappa gamma - alpha mu delta + mu) z + mu (1 - 2 gamma - alpha delta)

What is not taken back before the snapshot is taken back after it, and counts as training then.
`measured` plays the product's `pairwise` for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.swings import MOST
from gossipdp.protocol.rounds.usual_step import waits
from peers.plan.timeline import Counts
from simulations.lab.core import Score
from simulations.lab.data import normal
from simulations.lab.problems import FlatModel
from simulations.lab.stability.cells import CellLab, CellSetting
from simulations.lab.stability.landing import LandingOptions, LandingPairwise

__all__ = ["Loop", "measured", "polynomial"]

Matrix = NDArray[np.float64]
SKIPPED: Final = 6
"""first rounds of a run that do not count: outer momentum begins in them"""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One eigenvalue. `beta` is the momentum of the inner optimizer."""

    h: float
    every: int
    lands: float
    """0 to 1, rounds after the begin of the exchange"""
    beta: float = 0.9
    mu: float = 0.8
    gamma: float = 0.5
    alpha: float = 1.0
    kappa: float = 0.3

    def _steps(self, count: int) -> Matrix:
        """Map of (x, u) by `count` inner steps: u <- beta u + h x; x <- x - u."""
        step = np.array([[1.0 - self.h, -self.beta], [self.h, self.beta]])
        return np.asarray(np.linalg.matrix_power(step, count))

    @property
    def _halves(self) -> tuple[Matrix, Matrix]:
        """Maps of the steps before and after the landing. A correction waits for the next step."""
        first = min(self.every, math.ceil(self.lands * self.every - 1e-9))
        return self._steps(first), self._steps(self.every - first)

    def matrix(self, gain: float = 0.0, *, mixing: bool = True) -> Matrix:
        """Map of (a, v, u, p) by one round, shape (4, 4), if rounds swing by g = `gain`."""
        before, after = self._halves
        mu, alpha = self.mu * max(0.0, 1.0 - 2.0 * gain), self.alpha
        a, v, u, p = np.eye(4)
        moved = 2.0 * self.gamma / (1.0 + 2.0 * gain) * a * mixing
        live = before @ np.array([a - p, u])
        live[0] += p - moved
        x, u = after @ live
        a, v = a - moved, v + self.kappa / alpha * moved * (self.mu > 0.0)
        d = a - x
        v = mu * v + d
        a = a - alpha * (d + mu * v)
        return np.array([a, v, u, (a - x) * waits(self.mu, self.lands)])

    def root(self, *, guarded: bool = False, mixing: bool = True) -> complex:
        """Largest root of the characteristic polynomial. Its angle is that of D and the D before.

        Args:
            guarded: swings count in full.
            mixing: of the difference of the peers, not of their mean.
        """
        roots = np.roots(np.poly(self.matrix(MOST if guarded else 0.0, mixing=mixing)))
        return complex(roots[np.abs(roots).argmax()])

    def growth(self, *, guarded: bool = False, mixing: bool = True) -> float:
        """Factor of the difference in one round: the magnitude of `root`."""
        return abs(self.root(guarded=guarded, mixing=mixing))


def polynomial(
    learnt: float, taken: float, *, mu: float = 0.8, gamma: float = 0.5, alpha: float = 1.0, kappa: float = 0.3
) -> tuple[float, float, float]:
    """The characteristic polynomial without inner momentum, highest power first."""
    delta = learnt - 2.0 * gamma * taken
    kept = 1.0 - 2.0 * gamma - alpha * delta
    return 1.0, -(kept - 2.0 * mu**2 * kappa * gamma - alpha * mu * delta + mu), mu * kept


@dataclass(frozen=True)
class _Apart(FlatModel):
    """|x|^2 / 2 in 4,096 dimensions. Two peers begin on opposite sides. Curvatures vary by `noise` in each step."""

    noise: float

    name = "apart"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((4096,),)

    def start(self, seed: int) -> Tensor:
        side = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        return torch.stack([side, -side])

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return (torch.from_numpy(1.0 + self.noise * normal(peers, steps, seed, 4096)).float(),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        return 0.5 * (batch[0] * x.square()).sum()

    def evaluate(self, x: Tensor) -> Score:
        return Score(float(0.5 * x.square().sum()), math.nan)


def measured(loop: Loop, *, guard: str = "none", noise: float = 0.0, rounds: int = 24) -> float:
    """Growth of the difference by the product's `pairwise`, exact and without a clipping bound.

    Raises:
        ValueError: the inner optimizer of runs has a momentum of 0.9.
    """
    if loop.beta != 0.9:
        raise ValueError(f"beta {loop.beta}")
    options = LandingOptions(
        lr=loop.alpha,
        momentum=loop.mu,
        kappa=loop.kappa,
        weight=loop.gamma,
        codec="fp32",
        clip=math.inf,
        lands=(loop.lands, loop.lands),
        warmup_steps=0,
        guard=guard,
    )
    lab = CellLab(_Apart(noise), CellSetting(peers=2, every=loop.every, rounds=rounds, lr=loop.h))
    method = LandingPairwise(options)
    method.begin(lab)
    lengths = []
    for _ in range(rounds):
        method.round(lab)
        lengths.append(max(float(np.linalg.norm(method.replicas[0].ledger.a)), 1e-30))
    return float((lengths[-1] / lengths[SKIPPED]) ** (1.0 / (rounds - 1 - SKIPPED)))
