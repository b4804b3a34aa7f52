"""Attackers in the laboratory: `pairwise` with lies in its exchanges.

The first `bad` peers lie. They know everything that honest peers hold. `robustness/attacks.py` defines the lies. The
defence is that of the product: clipping in `Pairwise`.

The model of a method is the mean of the honest peers' models. No peer holds that mean, and it hides that an attack
drove the peers apart. So the tally also has the accuracy of each honest peer. This module defines no attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.ledger import block_max
from gossipdp.algorithms.pairwise import RANGE_DECAY, RANGE_SHARE, Pairwise
from gossipdp.codecs.blocks import BLOCK
from gossipdp.protocol.model import Outer
from peers.plan.pairs import OpenExchange, Tally
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.robustness.attacks import ATTACKS, Meeting

__all__ = ["AttackedPairwise"]

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
