"""Inner optimizers of the laboratory. One call steps all replicas, each row by itself.

A row is one replica. Rows may take different numbers of steps. A new optimizer is one class and one line in `INNER`.
This module knows no method, problem or clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

__all__ = ["INNER", "AdamW", "Inner", "InnerTerms"]

Rows = slice | Tensor
"""all rows, or the indices of some"""

EPSILON: Final = 1e-8
MUON_MOMENTUM: Final = 0.95
NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)
"""X <- a X + (b A + c A^2) X with A = X X^T, with Jordan's coefficients"""
ITERATIONS: Final = 5


@dataclass(frozen=True, kw_only=True)
class InnerTerms:
    """The part of a run's setting that an inner optimizer needs."""

    betas: tuple[float, float]
    weight_decay: float
    shapes: Sequence[tuple[int, ...]]
    """shapes of the parameters, in their order in a row"""
    embeddings: Collection[int]
    """indices in `shapes` of embedding tables"""


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


class _Muon:
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): matrices move by their orthogonalised momentum.

        B <- mu B + G;   O = NewtonSchulz(G + mu B), which is near U V^T of the singular value decomposition U S V^T
        X <- X - lr 0.2 sqrt(max(rows, columns)) O

    The factor gives a step the root mean square of an AdamW step (Liu et al. 2025, arXiv 2502.16982), so one `lr`
    serves both. AdamW steps vectors and embeddings.
    """

    def __init__(self, x: Tensor, terms: InnerTerms) -> None:
        shapes, embeddings = terms.shapes, set(terms.embeddings)
        spans = [slice(*pair) for pair in pairwise([0, *accumulate(math.prod(shape) for shape in shapes)])]
        self._matrices: list[tuple[slice, tuple[int, ...], Tensor]] = []
        self._others: list[tuple[slice, AdamW]] = []
        for place, (shape, span) in enumerate(zip(shapes, spans, strict=True)):
            if len(shape) == 2 and place not in embeddings:
                self._matrices.append((span, shape, torch.zeros(len(x), *shape)))
            else:
                self._others.append((span, AdamW(x[:, span], terms)))
        self._decay = terms.weight_decay

    def step(self, x: Tensor, gradients: Tensor, rows: Rows, lr: float) -> None:
        for span, shape, momenta in self._matrices:
            g = gradients[:, span].view(-1, *shape)
            momentum = momenta[rows].mul_(MUON_MOMENTUM).add_(g)
            if isinstance(rows, Tensor):
                momenta[rows] = momentum
            direction = _orthogonal(g + MUON_MOMENTUM * momentum).flatten(1)
            part = x[:, span]
            part[rows] = part[rows].mul(1.0 - lr * self._decay).sub_(direction, alpha=lr * 0.2 * math.sqrt(max(shape)))
        for span, adamw in self._others:
            adamw.step(x[:, span], gradients[:, span], rows, lr)


def _orthogonal(matrices: Tensor) -> Tensor:
    """U S' V^T of every matrix U S V^T, with S' between 0.7 and 1.2; shape (n, rows, columns)."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


INNER: dict[str, Callable[[Tensor, InnerTerms], Inner]] = {"adamw": AdamW, "muon": _Muon, "sgd": _Sgd}
