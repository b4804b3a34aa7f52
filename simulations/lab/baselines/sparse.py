"""SparseLoCo: the largest parts of the drifts in two bits, with error feedback at the sender."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from peers.plan.clock import compute_seconds, tries
from simulations.lab.baselines.costs import Averaged
from simulations.lab.core import Lab

__all__ = ["SparseLoCo", "largest"]

CHUNK: Final = 4096
"""parameters of which the k largest are sent"""
FIELD: Final = 14
"""bits of one of them: a place of 12 bits, a sign, and one of two levels"""
LEVELS: Final = 4
"""bytes of the two levels of a chunk, in bf16"""


@dataclass
class SparseLoCo(Averaged):
    """SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706): top-k of the drifts in two bits, with error feedback.

        e_i <- beta e_i + (theta - inner^H(theta))        c_i = Q(TopK(e_i))        e_i <- e_i - c_i
        theta <- theta - alpha 1/N sum_i c_i

    Error feedback replaces outer momentum. Bytes: an all-gather of the payloads, N - 1 per peer and round. Seconds: the
    peers wait for it.
    """

    k: int = 128
    """sent of each `CHUNK`"""
    alpha: float = 2.0
    beta: float = 0.95
    name: str = "sparseloco"
    anchor: Tensor = field(init=False, repr=False)
    errors: Tensor = field(init=False, repr=False)
    """e_i, shape (N, P)"""

    def begin(self, lab: Lab) -> None:
        self.anchor = lab.mean
        self.errors = torch.zeros_like(lab.x)

    def round(self, lab: Lab) -> None:
        lab.train(lab.setting.every)
        self.errors = self.beta * self.errors + (self.anchor - lab.x)
        sent = largest(self.errors, self.k)
        self.errors -= sent
        self.anchor = self.anchor - self.alpha * sent.mean(0)
        lab.x.copy_(self.anchor.expand_as(lab.x))
        lab.elapse(compute_seconds(lab, lab.setting.every) + self._gather(lab))

    def model(self, lab: Lab) -> Tensor:
        return self.anchor

    def _gather(self, lab: Lab) -> float:
        """Seconds of an all-gather. The payloads of all others arrive one after another."""
        chunks = -(-lab.problem.parameters // CHUNK)
        received = (lab.peers - 1) * chunks * (LEVELS + FIELD * self.k / 8)
        made = tries(lab)
        lab.receive(made * received)
        return made * lab.setting.link.seconds(received, min(1, lab.peers - 1))


def largest(rows: Tensor, k: int) -> Tensor:
    """The k largest magnitudes of each chunk of each row, rounded to two levels; all else is zero.

    The levels are the means of those above and below their mean, in bf16.

    Args:
        rows: shape (N, P).
    """
    chunks = torch.nn.functional.pad(rows, (0, -rows.shape[1] % CHUNK)).view(len(rows), -1, CHUNK)
    magnitudes, places = chunks.abs().topk(min(k, CHUNK), dim=2)
    high = magnitudes > magnitudes.mean(2, keepdim=True)
    levels = torch.where(high, _mean(magnitudes, high), _mean(magnitudes, ~high)).bfloat16().float()
    sent = torch.zeros_like(chunks).scatter_(2, places, levels * chunks.gather(2, places).sign())
    return sent.flatten(1)[:, : rows.shape[1]]


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values of each chunk, shape (N, chunks, 1)."""
    total = torch.where(chosen, values, 0.0).sum(2, keepdim=True)
    return total / chosen.sum(2, keepdim=True).clamp_min(1)
