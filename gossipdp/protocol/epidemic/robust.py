"""Increments that wait until their epoch has settled. A robust rule then aggregates them, the same at every peer.

A rule needs the whole epoch, and each contributor has one vote, the sum of its increments. Until then no increment of
another peer is in the anchor. The rule runs in two passes over the chunks: measure the distances between contributors,
as whole vectors, then apply the aggregate. A malformed increment is refused at every peer, and excludes its origin from
the epoch.

The shared state is the founding plus the aggregates of the settled epochs, the same bits at all peers that settled the
same sets. Meanwhile a peer's anchor leads by its own increments, as if it were alone, so that training does not fall
back by some epochs.

`broadcast` decides which increments there are, and `gossipdp.algorithms.epidemic.robust` holds the rules. No vector is
touched here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import length_of
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.events import EpochJudged, IncrementApplied, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["RobustEpochs"]


@dataclass
class _Increment:
    """One increment of the epoch."""

    row: int
    """row of its contributor"""
    rumour: Rumour
    payloads: list[Buffer] | None
    """one for each chunk; None if malformed"""
    scale: float
    """share of its movement that counts"""
    lengths: list[float] = field(default_factory=list)
    """movements of the chunks that it moves and that are measured"""
    sound: bool = True

    @property
    def refused(self) -> bool:
        """Whether it is malformed, by the same rule as in `Applying`. One that moves nothing is not refused."""
        moves = bool(self.lengths)
        return self.payloads is None or (moves and not (self.sound and length_of(self.lengths) == self.rumour.length))


@dataclass
class _Epoch:
    """An epoch under way."""

    number: int
    increments: list[_Increment]
    weights: list[float]
    """of the contributors, by row; 0 excludes one"""
    leads: list[_Lead]
    """own increments to take out of the lead"""
    counted: int = 0
    """contributors that the rule counted"""
    lengths: list[float] = field(default_factory=list)
    """movements of the chunks by the aggregate"""
    fingerprint: int = 0
    """of the movement applied so far"""

    def moving(self, chunk: int) -> list[tuple[_Increment, Buffer]]:
        """The increments that move the chunk, with their payloads of it."""
        said = [(each, each.payloads[chunk]) for each in self.increments if each.payloads is not None]
        return [(each, payload) for each, payload in said if memoryview(payload).nbytes]


@dataclass
class _Lead:
    """An own increment in the lead."""

    epoch: int
    compressor: str
    payloads: list[Buffer]


class RobustEpochs:
    """The settled epochs that move this peer's anchor.

    Args:
        rule: name of the robust rule.
        exclusive: queue of operations on the whole state.
        terms: the terms of an increment that was cut at this clock.
        longest: the largest movement by this increment.
        applied: called with the epoch and the fingerprint of the movement, after the anchor has moved.
        me: this peer's id.
    """

    def __init__(
        self,
        rule: str,
        exclusive: Exclusive,
        outputs: Outputs,
        terms: Callable[[int], Terms],
        longest: Callable[[Rumour], float],
        applied: Callable[[int, int], None],
        me: bytes,
    ) -> None:
        self._rule, self._exclusive, self._outputs, self._terms = rule, exclusive, outputs, terms
        self._longest, self._applied, self._me = longest, applied, me
        self._model: Model | None = None
        self._under_way: _Epoch | None = None
        self._leads: list[_Lead] = []

    def ready(self, model: Model) -> None:
        """The model is here."""
        self._model = model

    def leads(self, epoch: int, compressor: str, payloads: Sequence[Buffer]) -> None:
        """This peer's own increment of `epoch` is in its lead now."""
        self._leads.append(_Lead(epoch, compressor, list(payloads)))

    def forget(self) -> None:
        """The lead is empty again."""
        self._leads.clear()

    def take(self, epoch: int, rumours: Sequence[tuple[Rumour, Sequence[Buffer]]]) -> None:
        """Aggregate and apply a settled epoch, before any operation that waits.

        Args:
            rumours: its increments with their payloads, in an order that all peers share.
        """
        assert self._model is not None
        rows = {origin: row for row, origin in enumerate(sorted({rumour.origin for rumour, _ in rumours}))}
        given: list[list[float]] = [[] for _ in rows]
        made = []
        for rumour, parts in rumours:
            row, longest = rows[rumour.origin], self._longest(rumour)
            scale = longest / rumour.length if rumour.length > longest else 1.0
            made.append(_Increment(row, rumour, increments.unpack(parts, self._model.chunks), scale))
            given[row].append(rumour.weight)
        leads = [lead for lead in self._leads if lead.epoch <= epoch]
        self._leads = [lead for lead in self._leads if lead.epoch > epoch]
        # Before a snapshot, whose summary would claim to contain this epoch.
        self._exclusive.ask(partial(self._begin, _Epoch(epoch, made, list(map(math.fsum, given)), leads)), ahead=True)

    def _begin(self, epoch: _Epoch) -> bool:
        if not epoch.increments and not epoch.leads:
            return False
        self._under_way = epoch
        self._measure(epoch, 0)
        return True

    def _measure(self, epoch: _Epoch, chunk: int) -> None:
        self._outputs.ask(jobs.MeasureEpoch(chunk, tuple(epoch.weights), self._terms_of(epoch, chunk)))

    def _apply(self, epoch: _Epoch, chunk: int) -> None:
        weights, terms = tuple(epoch.weights), self._terms_of(epoch, chunk)
        payloads = ((lead.compressor, lead.payloads[chunk]) for lead in epoch.leads)
        leads = tuple((compressor, payload) for compressor, payload in payloads if memoryview(payload).nbytes)
        self._outputs.ask(jobs.ApplyEpoch(chunk, weights, terms, self._rule, leads))

    def _terms_of(self, epoch: _Epoch, chunk: int) -> tuple[jobs.Term, ...]:
        terms = []
        for each, payload in epoch.moving(chunk):
            compressor, lr = self._terms(each.rumour.clock)
            terms.append(jobs.Term(each.row, compressor, payload, lr, each.rumour.weight, each.scale))
        return tuple(terms)

    def job_done(self, job: jobs.Job[object], result: object) -> None:
        """The result of a MeasureEpoch or an ApplyEpoch."""
        assert isinstance(job, jobs.MeasureEpoch | jobs.ApplyEpoch)
        epoch, model = self._under_way, self._model
        assert epoch is not None and model is not None
        last = job.chunk + 1 == model.chunks
        if isinstance(job, jobs.MeasureEpoch):
            moving = epoch.moving(job.chunk)
            measured = job.typed(result)
            for (each, _), sound, movement in zip(moving, measured.sound, measured.movements, strict=True):
                each.sound = each.sound and sound
                each.lengths.append(movement)
            if not last:
                return self._measure(epoch, job.chunk + 1)
            self._refuse(epoch)
            return self._apply(epoch, 0)
        applied = job.typed(result)
        epoch.counted = sum(applied.counted)
        epoch.lengths.append(applied.movement)
        epoch.fingerprint += applied.fingerprint
        if not last:
            return self._apply(epoch, job.chunk + 1)
        self._end(epoch, model)

    def _refuse(self, epoch: _Epoch) -> None:
        for each in epoch.increments:
            if each.refused:
                epoch.weights[each.row] = 0.0
                self._outputs.emit(UpdateRefused(each.rumour.origin, "payload"))
        epoch.increments = [each for each in epoch.increments if epoch.weights[each.row] > 0.0]

    def _end(self, epoch: _Epoch, model: Model) -> None:
        self._under_way = None
        root = math.sqrt(model.schema.size)
        for each in epoch.increments:
            rumour, moved = each.rumour, each.scale * length_of(each.lengths) / root
            if rumour.origin != self._me:
                how = self._terms(rumour.clock).compressor
                event = IncrementApplied(rumour.origin, rumour.size, rumour.weight, rumour.hops, moved, how, each.scale)
                self._outputs.emit(event)
        movement = length_of(epoch.lengths) / root
        self._outputs.emit(EpochJudged(epoch.number, len(epoch.weights), epoch.counted, movement))
        self._applied(epoch.number, epoch.fingerprint)
        self._exclusive.over()
