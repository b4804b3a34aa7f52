"""Conditions under which the laboratory's methods are tried: peers that come and go, starts by a few, flipped labels.

Each wraps a method or a problem and leaves its equations alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import heapify
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gossipdp.codecs import moments
from gossipdp.protocol import jobs
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.core import Counts, Lab, Problem, Score, Setting
from simulations.lab.inner import AdamW
from simulations.lab.methods.epidemic import EpidemicGossip
from simulations.lab.methods.pairwise import OpenExchange, PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Replica
from simulations.lab.problems import PROBLEMS
from simulations.lab.robustness.attacks import ATTACKS

__all__ = ["ChurningEpidemic", "ChurningPairwise", "FlippedLabels", "Pretrained"]

FOUNDERS: Final = 1_000_003
"""added to the seed of what founders learn from"""


class ChurningPairwise(PairwiseGossip):
    """`pairwise` in a network where every so many rounds a share of the peers goes, and as many come.

    Who goes begins no exchange any more. Half of them finish what is under way, half crash in the middle of it: the
    exchange is void from there, and the survivor keeps what it mixed. Who comes is there at once, a copy of one peer's
    anchor (algorithms section 8) and moments, with no outer momentum, and data of its own. Where links take no time
    nothing is under way, and there is nothing to finish or to cut.
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
            compressed = exchange.mixed / (exchange.mixed + len(exchange.left))
            if any(peer in self._leaving and compressed > self._leaving[peer].after for peer in exchange.pair):
                exchange.cut()
                self.tally.count_cut()

    def _replace_departed(self, lab: Lab) -> bool:
        """Those who go and are in no exchange any more are gone, and others there; is that anybody?"""
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


@dataclass
class ChurningEpidemic(EpidemicGossip):
    """`epidemic` in the same network.

    What was published reaches everybody whoever has gone, crashed or not, for all pass it on; what its sender held
    back in e is lost. Who comes has one peer's state bit for bit, and is sent what that one still waits for. The same
    peers go, and the same are copied, as in `ChurningPairwise`.
    """

    every: int = 5
    share: float = 0.1
    moments: bool = True
    """who comes has the moments of its inner optimizer from whom it copies, too"""
    name: str = "epidemic, churn"

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        self._number = 0

    def round(self, lab: Lab) -> None:
        self._number += 1
        if self._number % self.every == 0:
            for departure in departures(lab, self.share, self._number):
                self._replace(lab, departure.peer, departure.source)
        super().round(lab)

    def _replace(self, lab: Lab, peer: int, source: int) -> None:
        giver = self.replicas[source]
        lab.x[peer] = torch.from_numpy(giver.ledger.a)
        _begin_optimizer(lab, peer, source if self.moments else None)
        self.replicas[peer] = taker = self._replica(lab, lab.x[peer])
        for chunk in range(giver.ledger.chunks):
            frozen = giver.algorithm.run(jobs.Freeze(chunk))
            taker.algorithm.run(jobs.Adopt(chunk, frozen.payload, frozen.hash))
            lab.received[peer] += memoryview(frozen.payload).nbytes
        others = [one for one in self._coming if one[2] != peer]
        missed = [(at, number, peer, message) for at, number, receiver, message in others if receiver == source]
        lab.received[peer] += sum(message.size for *_, message in missed)
        self._coming = others + missed
        heapify(self._coming)
        self._busy[peer] = self._busy[source]


@dataclass(frozen=True)
class Departure:
    """Who goes, whose copy comes in its place, and what share of its exchange is over when it crashes."""

    peer: int
    source: int
    after: float


def departures(lab: Lab, share: float, number: int) -> list[Departure]:
    """Such a share of the peers in round `number`; whatever the method has drawn, so that all lose the same ones."""
    random = np.random.default_rng((lab.setting.seed, number, 0x6C65_6176_65))
    count = max(1, round(share * lab.peers))
    going = random.choice(lab.peers, count, replace=False)
    staying = np.setdiff1d(np.arange(lab.peers), going)
    return [Departure(int(peer), int(random.choice(staying)), float(random.random())) for peer in going]


def _begin_optimizer(lab: Lab, peer: int, source: int | None) -> None:
    """The inner optimizer of who has come: at zero, or where that of `source` is, by the codec that it travels in."""
    inner = lab.inner
    if not isinstance(inner, AdamW):
        return
    if source is None:
        inner.m[peer], inner.v[peer], inner.counts[peer] = 0.0, 0.0, 0.0
        return
    size = lab.problem.parameters
    second = moments.encode_second(inner.v[source].numpy())
    first = moments.encode_first(inner.m[source].numpy(), second.data)
    payload = np.concatenate([second, first]).data
    inner.m[peer] = torch.from_numpy(moments.decode_first(payload, size))
    inner.v[peer] = torch.from_numpy(moments.decode_second(payload, size))
    inner.counts[peer] = inner.counts[source]
    lab.received[peer] += payload.nbytes


class _WrappedProblem:
    """A problem as it is; those who derive from this differ in one thing."""

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
    """What all begin with has been trained before, synchronously, by so many peers; their moments are gone.

    Those steps and their bytes are not on anybody's account.
    """

    def __init__(self, of: str, *, founders: int, steps: int, lr: float, **data: Any) -> None:
        super().__init__(of, **data)
        self._setting = Setting(peers=founders, every=steps, rounds=1, lr=lr, decay=False)

    def start(self, seed: int) -> Tensor:
        # Not the data that all see afterwards.
        lab = Lab(self.inner, replace(self._setting, seed=seed + FOUNDERS))
        lab.x.copy_(self.inner.start(seed).expand_as(lab.x))
        Ddp().round(lab)
        return lab.mean


class FlippedLabels(_WrappedProblem):
    """The first peers learn from labels that an attack has changed (`attacks.LabelFlip`)."""

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
