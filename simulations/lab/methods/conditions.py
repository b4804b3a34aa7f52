"""Conditions for the laboratory's methods: churn, pretrained starts, flipped labels, unequal batches.

Each class wraps a method or a problem and leaves its equations alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import payload_bytes
from gossipdp.training.optimizer_state.encoding import decode, encode
from peers.plan.pairs import OpenExchange
from peers.plan.timeline import Counts
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.core import Lab, Problem, Score, Setting
from simulations.lab.inner import AdamW
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Replica
from simulations.lab.problems import PROBLEMS
from simulations.lab.robustness.attacks import ATTACKS

__all__ = ["ChurningPairwise", "FlippedLabels", "Pretrained", "UnequalBatches"]

FOUNDERS: Final = 1_000_003
"""offset of the seed of the founders' data"""


class ChurningPairwise(PairwiseGossip):
    """`pairwise` under churn: every `every` rounds a share of the peers leaves, and as many join.

    A leaving peer begins no new exchange. Half of the leaving peers finish their exchange. The others crash during it:
    the exchange ends there, and the survivor keeps what it mixed.

    A joiner is there at once. It copies one peer's anchor (algorithms section 8) and Adam moments, has no outer
    momentum, and draws data of its own. If links take no time, no exchange is open when a peer leaves.
    """

    def __init__(self, options: PairwiseOptions | None = None, *, every: int = 5, share: float = 0.1) -> None:
        super().__init__(options, "pairwise, churn")
        self._every, self._share = every, share
        self._number = 0
        self._leaving: dict[int, Departure] = {}

    def round(self, lab: Lab) -> None:
        self._number += 1
        if self._number % self._every == 0:
            for place, departure in enumerate(departures(lab, self._share, self._number)):
                self._leaving[departure.peer] = departure if place % 2 == 1 else replace(departure, after=math.inf)
            self._replace_departed(lab)
        super().round(lab)

    def _free(self) -> list[int]:
        return [peer for peer in super()._free() if peer not in self._leaving]

    def _advance(self, lab: Lab) -> None:
        super()._advance(lab)
        if self._replace_departed(lab):
            super()._advance(lab)

    def _average_chunk(self, lab: Lab, exchange: OpenExchange) -> None:
        super()._average_chunk(lab, exchange)
        if exchange.left:
            done = exchange.mixed / (exchange.mixed + len(exchange.left))
            if any(peer in self._leaving and done > self._leaving[peer].after for peer in exchange.pair):
                exchange.cut()
                self.tally.count_cut()

    def _replace_departed(self, lab: Lab) -> bool:
        """Replace the leaving peers that are in no exchange; return whether there were any."""
        gone = [departure for peer, departure in self._leaving.items() if not self.replicas[peer].busy]
        for departure in gone:
            self._replace(lab, departure.peer, departure.source)
            del self._leaving[departure.peer]
        return bool(gone)

    def _replace(self, lab: Lab, peer: int, source: int) -> None:
        lab.x[peer] = torch.from_numpy(self.replicas[source].ledger.a)
        _begin_optimizer(lab, peer, source if self.options.moments else None)
        self.replicas[peer] = Replica(peer, lab.x[peer], self._algorithm(peer), alone=0)
        lab.received[peer] += 2.0 * lab.problem.parameters  # a state travels as bfloat16


@dataclass(frozen=True)
class Departure:
    """A peer that leaves, the peer that its replacement copies, and the share of its exchange before it crashes."""

    peer: int
    source: int
    after: float


def departures(lab: Lab, share: float, number: int) -> list[Departure]:
    """The peers that leave in round `number`. The draw is independent of the method's, so all methods lose the same
    peers.
    """
    random = np.random.default_rng((lab.setting.seed, number, 0x6C65_6176_65))
    count = max(1, round(share * lab.peers))
    going = random.choice(lab.peers, count, replace=False)
    staying = np.setdiff1d(np.arange(lab.peers), going)
    return [Departure(int(peer), int(random.choice(staying)), float(random.random())) for peer in going]


def _begin_optimizer(lab: Lab, peer: int, source: int | None) -> None:
    """Set the inner optimizer of a joiner.

    It starts at zero if `source` is None, otherwise from the moments of `source` through the codec that they travel in.
    """
    inner = lab.inner
    if not isinstance(inner, AdamW):
        return
    if source is None:
        inner.m[peer], inner.v[peer], inner.counts[peer] = 0.0, 0.0, 0.0
        return
    size = lab.problem.parameters
    v, m = (torch.nn.functional.pad(each[source], (0, -size % BLOCK)) for each in (inner.v, inner.m))
    v, m = decode(encode(v, m))
    inner.v[peer], inner.m[peer] = v[:size], m[:size]
    inner.counts[peer] = inner.counts[source]
    lab.received[peer] += payload_bytes(size)


class _WrappedProblem:
    """A problem unchanged. A subclass changes one thing."""

    def __init__(self, of: str, **data: Any) -> None:
        self.inner: Problem = PROBLEMS[of](**data)
        self.name = self.inner.name
        self.shapes: Sequence[tuple[int, ...]] = self.inner.shapes
        self.embeddings: Collection[int] = self.inner.embeddings
        self.parameters = self.inner.parameters

    def start(self, seed: int) -> Tensor:
        return self.inner.start(seed)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return self.inner.batches(peers, steps, seed)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        return self.inner.loss(x, *batch)

    def evaluate(self, x: Tensor) -> Score:
        return self.inner.evaluate(x)


class Pretrained(_WrappedProblem):
    """A problem whose initial parameters come from synchronous training by `founders` peers, without their Adam
    moments.

    Those steps and their bytes are not counted.
    """

    def __init__(self, of: str, *, founders: int, steps: int, lr: float, **data: Any) -> None:
        super().__init__(of, **data)
        self._setting = Setting(peers=founders, every=steps, rounds=1, lr=lr, decay=False)

    def start(self, seed: int) -> Tensor:
        # The founders train on other data than the run.
        lab = Lab(self.inner, replace(self._setting, seed=seed + FOUNDERS))
        lab.x.copy_(self.inner.start(seed).expand_as(lab.x))
        Ddp().round(lab)
        return lab.mean


class FlippedLabels(_WrappedProblem):
    """A problem whose first peers learn from labels that an attack changed (`attacks.LabelFlip`)."""

    def __init__(self, of: str, *, bad: int, attack: str, classes: int = 10, **data: Any) -> None:
        super().__init__(of, **data)
        self._bad, self._attack, self._classes = bad, ATTACKS[attack], classes

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        *inputs, labels = super().batches(peers, steps, seed)
        labels = labels.clone()
        for row in np.flatnonzero(peers < self._bad):
            told = self._attack.labels(labels[row].numpy(), self._classes, 0)
            labels[row] = torch.from_numpy(np.ascontiguousarray(told))
        return *inputs, labels


class UnequalBatches(_WrappedProblem):
    """A problem whose peers have batches of their own size.

    A smaller batch is repeated until it is as long as the largest one. That leaves its mean gradient as it is.

    Args:
        sizes: samples per step of each peer, repeated up to N.
    """

    def __init__(self, of: str, *, sizes: Sequence[int], **data: Any) -> None:
        super().__init__(of, batch=max(sizes), **data)
        self._sizes = np.array(sizes)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        own = self._sizes[peers % len(self._sizes)]
        chosen = torch.from_numpy(np.arange(self._sizes.max()) % own[:, None])
        rows = torch.arange(len(peers))[:, None]
        return tuple(each[rows, chosen] for each in super().batches(peers, steps, seed))
