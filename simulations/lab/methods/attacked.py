"""Attackers in the laboratory: `pairwise` with lies in its exchanges, and closed epochs of `epidemic` under robust
rules.

The first `bad` peers lie. They know everything that honest peers hold, and ties favour them. `robustness/attacks.py`
defines the lies. The defences are those of the product: clipping in `Pairwise`, and the rules of `Epidemic` for epochs.

The model of a method is the mean of the honest peers' models. No peer holds that mean, and it hides that an attack
drove the peers apart. So the tally also has the accuracy of each honest peer. This module defines no attack and no
rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.epidemic.fixed_point import to_float
from gossipdp.algorithms.ledger import block_max
from gossipdp.algorithms.pairwise import RANGE_DECAY, RANGE_SHARE, Pairwise
from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import BLOCK, Buffer
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from simulations.lab.baselines.costs import compute_seconds
from simulations.lab.core import Lab
from simulations.lab.methods.epidemic import EpidemicReplica
from simulations.lab.methods.pairwise import OpenExchange, PairwiseGossip, PairwiseOptions
from simulations.lab.methods.tally import Tally
from simulations.lab.robustness.attacks import ATTACKS, Meeting

__all__ = ["AttackedPairwise", "RobustEpochs"]

Vector = NDArray[np.float32]


@dataclass
class AttackedTally(Tally):
    honest: float = math.nan
    """mean held-out accuracy of the honest peers' anchors at the last evaluation"""
    worst: float = math.nan
    """the lowest of these accuracies"""

    def look(self, accuracies: Sequence[float]) -> None:
        """Record the accuracy of each honest peer's anchor."""
        self.honest, self.worst = float(np.mean(accuracies)), min(accuracies)


class _Liar(Pairwise):
    """The algorithm of an attacker. It clips nothing, and can undo what an exchange taught it."""

    def __init__(self) -> None:
        super().__init__(clip=math.inf)

    def learnt(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Copies of the learnt ranges and of the distances."""
        return self.range.copy(), self._distance.copy()

    def relearn(self, blocks: slice, ranges: NDArray[np.float32], distances: NDArray[np.float64]) -> None:
        """Set the ranges of `blocks` and all distances."""
        self.range[blocks] = ranges
        self._distance[:] = distances


class AttackedPairwise(PairwiseGossip):
    """`pairwise` in which an attacker presents a false anchor to every honest peer it meets.

    In private it follows the protocol as if it had not lied: its anchor, momentum and ranges are those of an honest
    peer. It clips nothing. Exchanges take no time.

    Args:
        attack: a key of `ATTACKS`.
        bad: number of attackers, the first peers.
    """

    tally: AttackedTally

    def __init__(self, options: PairwiseOptions, attack: str, bad: int) -> None:
        super().__init__(options, "pairwise")
        if options.landing != "at once" or options.warmup_steps:
            raise ValueError("exchanges take no time here, and there is no warm-up")
        self._attack, self._bad, self.tally = ATTACKS[attack], bad, AttackedTally()
        self._starts: list[Vector] = []
        self._told: dict[tuple[int, int], Vector] = {}
        """the false anchor, by initiator and responder"""

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        lab.exclude(self._bad)

    def _algorithm(self, peer: int) -> Pairwise:
        return super()._algorithm(peer) if peer >= self._bad else _Liar()

    def round(self, lab: Lab) -> None:
        super().round(lab)
        if self._rounds % lab.setting.evaluate_every == 0 or self._rounds == lab.setting.rounds:
            anchors = (torch.from_numpy(replica.ledger.a.copy()) for replica in self.replicas[self._bad :])
            found = [lab.problem.evaluate(anchor).accuracy for anchor in anchors]
            self.tally.look(found)

    def model(self, lab: Lab) -> Tensor:
        return torch.from_numpy(np.mean([replica.ledger.a for replica in self.replicas[self._bad :]], 0))

    def _play(self, lab: Lab, every: int, outer: Outer, exchanges: int, *, scheduled: bool) -> None:
        self._starts = [replica.ledger.a.copy() for replica in self.replicas]
        super()._play(lab, every, outer, exchanges, scheduled=scheduled)

    def _begin_exchange(self, lab: Lab, first: int, second: int, weight: float) -> None:
        super()._begin_exchange(lab, first, second, weight)
        liar, honest = sorted((first, second))
        if not self._bad or liar >= self._bad or honest < self._bad:
            return
        anchors = [replica.ledger.a for replica in self.replicas]
        meeting = Meeting(
            own=anchors[liar].copy(),
            start=self._starts[liar],
            partner=anchors[honest].copy(),
            honest=np.stack(anchors[self._bad :]),
            bad=self._bad,
        )
        told = self._attack.anchor(meeting, self._rounds - 1, lab.random)
        self._told[first, second] = np.asarray(told, np.float32)

    def _average_chunk(self, lab: Lab, meeting: OpenExchange) -> None:
        told = self._told.get(meeting.pair)
        liar, honest = (self.replicas[peer] for peer in sorted(meeting.pair))
        if told is None:
            super()._average_chunk(lab, meeting)
            return
        chunk, algorithm = meeting.left[-1], liar.algorithm
        assert isinstance(algorithm, _Liar)
        span, pending = liar.ledger.span(chunk), liar.ledger.pending(chunk)
        own, before, met = liar.ledger.a[span].copy(), pending.copy(), honest.ledger.a[span].copy()
        v, (ranges, distances) = liar.ledger.v[span].copy(), algorithm.learnt()
        liar.ledger.a[span] = told[span]
        super()._average_chunk(lab, meeting)
        moved = np.float32(meeting.dialogue.weight) * (met - own)
        liar.ledger.a[span] = own + moved
        liar.ledger.v[span] = v - np.float32(meeting.dialogue.pull) * moved
        pending[:] = before + moved
        blocks = slice(span.start // BLOCK, -(-span.stop // BLOCK))
        expected = np.maximum(RANGE_SHARE * block_max(met - own), RANGE_DECAY * ranges[blocks])
        algorithm.relearn(blocks, expected, distances)
        if not meeting.left:
            del self._told[meeting.pair]


@dataclass
class RobustEpochs:
    """`epidemic` that applies an epoch only when all of its increments are there, by a robust rule over them.

        a <- a - alpha R(c_1, ..., c_N)

    Vectors, payloads and rules are the product's, by its jobs Publish, MeasureEpoch and ApplyEpoch. An attacker
    publishes as if honest, but sends a lie through the same compressor. A lie that is not finite becomes an empty
    payload, which receivers reject. No peer waits. A peer receives N - 1 payloads.

    `lag` is the number of rounds until an epoch settles. 0 is the algorithm itself. The daemon's epochs last one round
    and settle five rounds later; until then a peer's own increments are applied ahead of the others.
    """

    compressor: str = "topk128"
    alpha: float = 1.0
    beta: float = 0.95
    rule: str = "mean"
    attack: str = "none"
    bad: int = 0
    lag: int = 0
    name: str = "epidemic"
    replicas: list[EpidemicReplica] = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        lab.exclude(self.bad)
        self.replicas = [EpidemicReplica(row) for row in lab.x]
        self._number = 0
        self._open: deque[tuple[list[list[Buffer]], list[list[Buffer]]]] = deque()
        """open epochs: the payloads that each peer published as its own, and those that it sent"""

    def round(self, lab: Lab) -> None:
        lab.train(lab.setting.every)
        published = [self._published(lab, replica) for replica in self.replicas]
        lies = self._lies(lab, published)
        sent = [*lies, *published[len(lies) :]]
        self._open.append((published, sent))
        if len(self._open) > self.lag:
            published, settled = self._open.popleft()
            for replica, own in zip(self.replicas, published, strict=True):
                self._apply(replica, own, settled)
        for replica in self.replicas:
            replica.drain()
        sizes = np.array([sum(len(memoryview(payload)) for payload in payloads) for payloads in sent], np.float64)
        lab.receive(sizes.sum() - sizes)
        lab.elapse(compute_seconds(lab, lab.setting.every))
        self._number += 1

    def model(self, lab: Lab) -> Tensor:
        """The anchor that all honest peers share."""
        ledger = self.replicas[-1].ledger
        for chunk in range(ledger.chunks):
            ledger.settle(chunk)
        return torch.from_numpy(to_float(ledger.fixed))

    def _published(self, lab: Lab, replica: EpidemicReplica) -> list[Buffer]:
        weight, applied = 1.0 / lab.peers, replica.applied
        replica.buffers.submit()
        return [
            replica.publish(
                jobs.Publish(chunk, self.compressor, self.alpha, self.beta, weight, applied, _seed(lab), lead=True)
            ).payload
            for chunk in range(replica.ledger.chunks)
        ]

    def _lies(self, lab: Lab, published: list[list[Buffer]]) -> list[list[Buffer]]:
        """Payloads of the attackers, which know the increments of all honest peers."""
        if not self.bad:
            return []
        codec, ledger = COMPRESSORS[self.compressor], self.replicas[0].ledger
        spans = [ledger.span(chunk) for chunk in range(ledger.chunks)]
        rows = np.zeros((lab.peers, lab.problem.parameters), np.float32)
        for row, payloads in zip(rows, published, strict=True):
            for span, payload in zip(spans, payloads, strict=True):
                if payload:  # a diverged peer sends nothing
                    row[span] = codec.decode(payload, span.stop - span.start)
        told = ATTACKS[self.attack].increments(rows[self.bad :], rows[: self.bad], self._number, lab.random)
        told = np.asarray(told, np.float32)
        if not np.isfinite(told).all():
            return [[b"" for _ in spans] for _ in told]
        return [[codec.encode(row[span], seed=_seed(lab)) for span in spans] for row in told]

    def _apply(self, replica: EpidemicReplica, own: list[Buffer], settled: list[list[Buffer]]) -> None:
        weights = (1.0 / len(settled),) * len(settled)
        terms = [
            tuple(
                jobs.Term(row, self.compressor, payload, self.alpha, weights[row])
                for row, payload in enumerate(payloads)
            )
            for payloads in zip(*settled, strict=True)
        ]
        for chunk, said in enumerate(terms):
            replica.algorithm.run(jobs.MeasureEpoch(chunk, weights, said))
        for chunk, said in enumerate(terms):
            leads = ((self.compressor, own[chunk]),) if own[chunk] else ()  # without increments of its own in front
            replica.algorithm.run(jobs.ApplyEpoch(chunk, weights, said, self.rule, leads))


def _seed(lab: Lab) -> int:
    return int(lab.random.integers(1 << 63))
