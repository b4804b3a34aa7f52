"""A trial: partners of `pairwise` average a fragment of their outer momenta too.

The momentum is one more vector in the same dialogue. Partners are chosen as in `pairwise`. The trial is not in the
product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gossipdp.algorithms.ledger import Ledger, block_max
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs.base import ChunkCodec, Vector
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from gossipdp.protocol.rounds.pacing import ALONE_AFTER
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Dialogue, Replica

__all__ = ["MomentumGossip"]


class _MomentumLedger(Ledger):
    """A ledger whose anchor is the momentum of another ledger, not a copy of it."""

    def __init__(self, other: Ledger) -> None:
        super().__init__(other.size, other.trainable, other.chunk_parameters)
        self.a = other.v


class _MomentumPairwise(Pairwise):
    """A replica's momentum in the place of an anchor, with ranges of its own and no clipping.

    moved_b = |v - v at the last exchange of the block|_inf, by outer steps and by kappa
    """

    def __init__(self, replica: Replica) -> None:
        super().__init__(clip=math.inf)
        ledger = replica.ledger
        self.allocate(ledger.size, ledger.trainable, ledger.chunk_parameters)
        self.ledger = _MomentumLedger(ledger)
        self._seen: Vector = ledger.v.copy()

    def _codec(self, key: jobs.ChunkKey, coding: jobs.Coding) -> ChunkCodec:
        span = self.ledger.span(key.chunk)
        self.moved[self._blocks(key.chunk)] = block_max(self.ledger.a[span] - self._seen[span])
        return super()._codec(key, coding)

    def _execute(self, job: jobs.Job[object]) -> object:
        result = super()._execute(job)
        if isinstance(job, jobs.DecodeAndMix | jobs.Mix) and job.typed(result).mixed:
            span = self.ledger.span(job.key.chunk)
            self._seen[span] = self.ledger.a[span]
        return result


@dataclass(frozen=True)
class _WithMomenta(Dialogue):
    """A dialogue about two anchors, and about the momenta in some chunks."""

    momenta: Dialogue
    parts: int
    turn: int

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        down, up, turn = super().chunk(chunk)
        if not turn.mixed or (chunk + self.turn) % self.parts:
            return down, up, turn
        more_down, more_up, told = self.momenta.chunk(chunk)
        counted = replace(turn, blocks=turn.blocks + told.blocks, escalated=turn.escalated + told.escalated)
        return down + more_down, up + more_up, counted


class MomentumGossip(PairwiseGossip):
    """`pairwise` that also averages the momenta, in every M-th chunk, in turn by rounds, after the anchors:

        v_i += gamma (v_j - v_i),   v_j -= gamma (v_j - v_i)        by the same codec, with kappa's pull unchanged

    The sums of a and of v stay exact. An exchange takes 1/M more bytes. There is no momentum to average if mu is 0, or
    if either side stepped as if alone. A chunk of a momentum counts as messages of its own.

    Args:
        parts: M; 1 is the whole momentum.
    """

    def __init__(self, options: PairwiseOptions | None = None, *, parts: int = 4) -> None:
        super().__init__(options, "pairwise, momentum averaged")
        if parts < 1:
            raise ValueError(f"{parts} parts")
        if self.options.warmup_steps:
            raise ValueError("no warm-up but the laboratory's own")
        self._parts = parts
        self._momenta: list[Replica] = []
        self._outer = Outer(1.0, 0.0)

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        self._momenta = [replica.with_algorithm(_MomentumPairwise(replica)) for replica in self.replicas]

    def _play(self, lab: Lab, every: int, outer: Outer, exchanges: int, *, scheduled: bool) -> None:
        self._outer = outer
        super()._play(lab, every, outer, exchanges, scheduled=scheduled)

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        terms = super()._dialogue(first, second, weight)
        if not self._outer.momentum or max(self.replicas[first].alone, self.replicas[second].alone) >= ALONE_AFTER:
            return terms
        momenta = replace(terms, initiator=self._momenta[first], responder=self._momenta[second], pull=0.0)
        return _WithMomenta(**vars(terms), momenta=momenta, parts=self._parts, turn=self._rounds)
