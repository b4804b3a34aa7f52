"""Inner optimizers of the laboratory. One call steps all replicas, each row by itself.

A row is one replica. Rows may take different numbers of steps. A new optimizer is one class and one line in `INNER`.
This module knows no method, problem or clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

__all__ = ["FREEZING", "INNER", "AdamW", "Inner", "InnerTerms", "Rows"]

Rows = slice | Tensor
"""all rows, or the indices of some"""

EPSILON: Final = 1e-8
FREEZING: Final = "adamw-freezing"
"""the inner optimizer of runs that train some elements in turn"""


@dataclass(frozen=True, kw_only=True)
class InnerTerms:
    """The part of a run's setting that an inner optimizer needs."""

    betas: tuple[float, float]
    weight_decay: float


class Inner(Protocol):
    """An inner optimizer of all replicas."""

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        """Step x[rows] by `gradients`, shape (rows, P)."""


class _Sgd:
    """x <- x - lr (g + lambda x)."""

    def __init__(self, x: Tensor, terms: InnerTerms) -> None:
        self._decay = terms.weight_decay

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        x[rows] = x[rows].mul(1.0 - lr * self._decay).sub_(gradients, alpha=lr)


class AdamW:
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) with a step count per row."""

    def __init__(self, x: Tensor, terms: InnerTerms) -> None:
        self.m, self.v = torch.zeros_like(x), torch.zeros_like(x)
        self.counts = torch.zeros(len(x), 1, dtype=torch.float64)
        self._betas, self._decay = terms.betas, terms.weight_decay

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        first, second = self._betas
        self.counts[rows] += 1.0
        counts = self.counts[rows]
        # A slice gives views, an index tensor gives copies.
        m, v, at = self.m[rows], self.v[rows], x[rows]
        m.lerp_(gradients, 1.0 - first)
        v.mul_(second).addcmul_(gradients, gradients, value=1.0 - second)
        # x <- x - (lr / bias_1) m / (sqrt(v / bias_2) + epsilon), in few passes over memory
        root = v.sqrt().div_((1.0 - second**counts).sqrt().float()).add_(EPSILON)
        root.mul_(((1.0 - first**counts) / -lr).float())
        if self._decay:
            at.mul_(1.0 - lr * self._decay)
        at.addcdiv_(m, root)
        if isinstance(rows, Tensor):
            self.m[rows], self.v[rows], x[rows] = m, v, at


class _FreezingAdamW(AdamW):
    """AdamW that leaves elements whose gradient is exactly 0, and their moments, as they are.

    So a frozen factor does not move by its momentum, as in torch, where it has no gradient. The count of steps is that
    of the replica.
    """

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        still = gradients == 0.0
        states = (x, self.m, self.v)
        before = [state[rows].clone() for state in states]
        super().step(x, gradients, rows, lr)
        for state, old in zip(states, before, strict=True):
            state[rows] = torch.where(still, old, state[rows])


INNER: dict[str, Callable[[Tensor, InnerTerms], Inner]] = {"adamw": AdamW, FREEZING: _FreezingAdamW, "sgd": _Sgd}
