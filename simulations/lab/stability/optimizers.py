"""Inner optimizers that take corrections back: momentum, Nesterov's, Adam, and quasi-Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from simulations.lab.inner import AdamW, Inner, InnerTerms, Rows

__all__ = ["OPTIMIZERS"]

BETA: Final = 0.9
MEMORY: Final = 5
"""pairs that a quasi-Newton step knows"""
CURVED: Final = 1e-10
"""least <s, y> of a pair that is kept"""


class _Momentum:
    """m <- 0.9 m + g; x <- x - lr m, or with Nesterov's lookahead x <- x - lr (g + 0.9 m)."""

    def __init__(self, x: Tensor, *, nesterov: bool = False) -> None:
        self._m, self._nesterov = torch.zeros_like(x), nesterov

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        m = self._m[rows].mul(BETA).add_(gradients)
        self._m[rows] = m
        x[rows] = x[rows].sub(gradients.add(m, alpha=BETA) if self._nesterov else m, alpha=lr)


class _QuasiNewton:
    """L-BFGS by the two-loop recursion (Nocedal 1980) without line search, as `torch.optim.LBFGS` with max_iter 1.

    s is the step that it made, and y the change of the gradient, so corrections enter y alone.
    """

    def __init__(self, x: Tensor) -> None:
        self._s = torch.zeros(len(x), MEMORY, x.shape[1])
        self._y = torch.zeros_like(self._s)
        self._rho = torch.zeros(len(x), MEMORY, 1)
        self._scale = torch.ones(len(x), 1)
        self._gradient, self._step = torch.zeros_like(x), torch.zeros_like(x)
        self._begun = torch.zeros(len(x), 1, dtype=torch.bool)

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        self._learn(gradients, rows)
        s, y, rho = self._s[rows], self._y[rows], self._rho[rows]
        q, shares = gradients, []
        for k in reversed(range(MEMORY)):
            shares.append(rho[:, k] * (s[:, k] * q).sum(1, keepdim=True))
            q = q - shares[-1] * y[:, k]
        q = q * self._scale[rows]
        for k in range(MEMORY):
            q = q + s[:, k] * (shares.pop() - rho[:, k] * (y[:, k] * q).sum(1, keepdim=True))
        first = (1.0 / gradients.abs().sum(1, keepdim=True)).clamp_max(1.0)
        step = -lr * torch.where(self._begun[rows], q, first * gradients)
        self._gradient[rows], self._step[rows], self._begun[rows] = gradients, step, True
        x[rows] = x[rows] + step

    def _learn(self, gradients: Tensor, rows: Rows) -> None:
        """Keep the pair of the last step, if the loss curves upwards along it."""
        s, y = self._step[rows], gradients - self._gradient[rows]
        sy = (s * y).sum(1, keepdim=True)
        good = (sy > CURVED) & self._begun[rows]
        news = ((self._s, s), (self._y, y), (self._rho, 1.0 / sy.clamp_min(CURVED)))
        for known, new in news:
            before = known[rows]
            known[rows] = torch.where(good[:, None], torch.cat([before[:, 1:], new[:, None]], 1), before)
        scale = sy / y.square().sum(1, keepdim=True).clamp_min(1e-30)
        self._scale[rows] = torch.where(good, scale, self._scale[rows])


OPTIMIZERS: dict[str, Callable[[Tensor, InnerTerms], Inner]] = {
    "momentum": lambda x, terms: _Momentum(x),
    "nesterov": lambda x, terms: _Momentum(x, nesterov=True),
    "adam": AdamW,
    "l-bfgs": lambda x, terms: _QuasiNewton(x),
}
