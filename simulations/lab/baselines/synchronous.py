"""Synchronous baselines: all peers make equally many steps, then a collective, then the next steps.

A round lasts as long as the slowest peer computes, plus its collective (`peers.plan.clock`). A failed collective is
repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from peers.plan.clock import (
    all_reduce,
    compute_seconds,
    four_bit_all_reduce,
    own_pace,
    step_with_all_reduce,
)
from simulations.lab.baselines.costs import Averaged, model_bytes
from simulations.lab.core import Lab

__all__ = ["WARMUP_EVERY", "Ddp", "DiLoCo", "FourBitDiLoCo", "LocalSgd"]

WARMUP_EVERY: Final = 5
"""steps of a short round of DiLoCo's warm start, at least"""


@dataclass
class Ddp(Averaged):
    """Synchronous data parallelism: the inner optimizer takes the mean gradient, and all replicas stay equal.

        g = 1/N sum_i g_i(theta)        theta <- inner(theta, g)        every step

    Bytes: an all-reduce of the gradients each step. Seconds: it overlaps with the backward pass, two thirds of the step
    (buckets; Li et al. 2020, arXiv 2006.15704). The step waits for the rest. With `half` each gradient travels in bf16,
    two bytes per parameter, and the mean is rounded too (torch's `bf16_compress_hook`).
    """

    half: bool = False
    name: str = "ddp"

    def round(self, lab: Lab) -> None:
        for _ in range(lab.setting.every):
            lab.update(self._mean(lab.gradients()).expand_as(lab.x))
            step_with_all_reduce(lab, model_bytes(lab) * (0.5 if self.half else 1.0))

    def _mean(self, gradients: Tensor) -> Tensor:
        if not self.half:
            return gradients.mean(0, keepdim=True)
        return gradients.bfloat16().float().mean(0, keepdim=True).bfloat16().float()


@dataclass
class LocalSgd(Averaged):
    """Local SGD (Stich 2019, arXiv 1805.09767; McMahan et al. 2017): H local steps, then the mean.

        theta_i <- inner^H(theta_i)        theta_i <- 1/N sum_j theta_j

    Bytes: an all-reduce of the parameters each round. Seconds: the peers wait for it. States of inner optimizers are
    not averaged.
    """

    name: str = "local-sgd"

    def round(self, lab: Lab) -> None:
        lab.train(lab.setting.every)
        lab.x.copy_(lab.mean.expand_as(lab.x))
        lab.elapse(compute_seconds(lab, lab.setting.every) + all_reduce(lab, model_bytes(lab)))


@dataclass
class DiLoCo(Averaged):
    """DiLoCo (Douillard et al. 2023, arXiv 2311.08105): Nesterov momentum on the mean of H steps.

        Delta = 1/N sum_i (theta - inner^H(theta))
        v <- mu v + Delta        theta <- theta - alpha (Delta + mu v)

    This is the form of torch.optim.SGD(nesterov=True), as in the paper. Bytes: an all-reduce of Delta in fp32 each
    round. Seconds: the peers wait for it.

    With `own_pace` H_i is proportional to the speed, so no peer waits for a slower one to compute (dynamic local
    updates, Liu et al. 2024, arXiv 2401.09135, here with the barrier). With `plain_first` the first outer step is theta
    <- theta - Delta and leaves v at 0, as in `pairwise`.

    `warmup_steps` steps come before the first round, in short rounds with such a plain outer step. A short round has
    `WARMUP_EVERY` steps, or as many as its collective lasts. The warm start of `pairwise` follows the same rule, with
    an H of its own (algorithms section 6).
    """

    alpha: float = 0.7
    mu: float = 0.9
    own_pace: bool = False
    plain_first: bool = False
    warmup_steps: int = 0
    name: str = "diloco"
    anchor: Tensor = field(init=False, repr=False)
    """theta, shape (P,)"""
    v: Tensor = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        self.anchor = lab.mean
        self.v = torch.zeros_like(self.anchor)
        self._lasted = 0.0
        left = self.warmup_steps
        while left > 0:
            every = min(left, max(WARMUP_EVERY, math.ceil(self._lasted / lab.setting.step_seconds)))
            left -= every
            self._plain = True
            self.play(lab, every)
        self._plain = self.plain_first

    def round(self, lab: Lab) -> None:
        self.play(lab, lab.setting.every)

    def play(self, lab: Lab, every: int) -> None:
        """Play a round of `every` steps."""
        lab.train(self.counts(lab, every))
        lab.elapse(compute_seconds(lab, every))
        self.outer(lab)
        lab.x.copy_(self.anchor.expand_as(lab.x))

    def counts(self, lab: Lab, every: int) -> NDArray[np.int64]:
        """Steps of each peer in a round, shape (N,)."""
        return own_pace(lab, every) if self.own_pace else np.full(lab.peers, every)

    def outer(self, lab: Lab) -> None:
        began = lab.seconds
        delta = self.reduce(lab, self.anchor - lab.x)
        self._lasted = lab.seconds - began
        if self._plain:
            self.anchor, self._plain = self.anchor - delta, False
            return
        self.v = self.mu * self.v + delta
        self.anchor = self.anchor - self.alpha * (delta + self.mu * self.v)

    def reduce(self, lab: Lab, drifts: Tensor) -> Tensor:
        """The mean of the rows, as all peers have it after a collective; shape (P,)."""
        lab.elapse(all_reduce(lab, model_bytes(lab)))
        return drifts.mean(0)

    def model(self, lab: Lab) -> Tensor:
        return self.anchor


@dataclass
class FourBitDiLoCo(DiLoCo):
    """DiLoCo with an all-reduce of 4 bits, as in Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512).

        Delta = Q(1/N sum_i Q(theta - inner^H(theta)))        Q: E3M0

    The outer gradients travel as E3M0 floats, and peers sum them in fp32. Each peer gathers one N-th of every other
    peer's, averages it, and sends the rounded mean to all: two turns.

    Bytes: 2 (1 - 1/N) (1/2 + 2/256) per parameter, because each block of 256 has a bf16 scale. Seconds: the peers wait
    for it. So this is DiLoCo with an eighth of its bytes. `overlapped.py` has the paper's overlap. Its fragments are
    left out.
    """

    name: str = "diloco-4bit"

    def reduce(self, lab: Lab, drifts: Tensor) -> Tensor:
        lab.elapse(four_bit_all_reduce(lab, lab.problem.parameters))
        return e3m0(e3m0(drifts).mean(0, keepdim=True))[0]


_LEVELS = torch.tensor([0.0, *(2.0**-power for power in range(6, -1, -1))])
_BETWEEN = (_LEVELS[1:] + _LEVELS[:-1]) / 2.0


def e3m0(rows: Tensor) -> Tensor:
    """Each row in 4 bits, blocks of 256: a sign and a power of two, 1 to 1/64 of the block's largest, or zero."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK)).view(len(rows), -1, BLOCK)
    scale = padded.abs().amax(2, keepdim=True).to(torch.bfloat16).to(torch.float32)
    shares = (padded.abs() / scale.clamp_min(torch.finfo(torch.float32).tiny)).contiguous()
    rounded: Tensor = _LEVELS[torch.bucketize(shares, _BETWEEN)] * scale * padded.sign()
    return rounded.flatten(1)[:, : rows.shape[1]]
