"""Increments that wait until their epoch has settled, and are then judged by a robust rule, at every peer alike.

A rule looks at all of an epoch, and at who sent it: each contributor has one voice, by all that it sent. So nothing of
another is in the anchor before, and nothing at all that was not judged. In two passes, chunk by chunk: how far the
contributors are from each other, as whole vectors; then what the rule makes of them is applied. What is malformed is
refused by all alike, and who signed it is not looked at. What is shared is what the state was founded with and what the
rule has made of the settled epochs: the same bits at all who have settled the same. Meanwhile a peer's anchor leads by
its own increments, as if it were alone, for training is not to go back to where it was some epochs ago.

Which increments there are is decided in `rumours`, and what a rule does in `algorithms`; no vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import Terms, length_of
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.events import EpochJudged, IncrementApplied, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["Judging"]


@dataclass
class _Increment:
    """One rumour of the epoch. row: whose it is. payloads: None if nobody can read them. scale: what is left of its
    movement."""

    row: int
    rumour: Rumour
    payloads: list[Buffer] | None
    scale: float
    lengths: list[float] = field(default_factory=list)
    """of the chunks that it moves, as far as they are measured"""
    sound: bool = True

    @property
    def refused(self) -> bool:
        """As `Applying` has it: of what moves nothing there is nothing to refuse."""
        moves = bool(self.lengths)
        return self.payloads is None or (moves and not (self.sound and length_of(self.lengths) == self.rumour.length))


@dataclass
class _Epoch:
    """weights: of the contributors; 0 for whoever is not looked at. leads: own increments that are taken out of the
    lead."""

    number: int
    increments: list[_Increment]
    weights: list[float]
    leads: list[_Lead]
    counted: int = 0
    lengths: list[float] = field(default_factory=list)
    fingerprint: int = 0

    def moving(self, chunk: int) -> list[tuple[_Increment, Buffer]]:
        """What moves the chunk."""
        said = [(each, each.payloads[chunk]) for each in self.increments if each.payloads is not None]
        return [(each, payload) for each, payload in said if memoryview(payload).nbytes]


@dataclass
class _Lead:
    epoch: int
    compressor: str
    payloads: list[Buffer]


class Judging:
    """Args:

    rule: by its name.
    terms: of an increment cut at this clock.
    longest: how far this one may move an anchor.
    judged: called when the anchor has been moved, with the epoch and the fingerprint of what was added to it.
    me: this peer.
    """

    def __init__(
        self,
        rule: str,
        turns: Exclusive,
        outputs: Outputs,
        terms: Callable[[int], Terms],
        longest: Callable[[Rumour], float],
        judged: Callable[[int, int], None],
        me: bytes,
    ) -> None:
        self._rule, self._turns, self._outputs, self._terms = rule, turns, outputs, terms
        self._longest, self._judged, self._me = longest, judged, me
        self.model: Model | None = None
        self._under_way: _Epoch | None = None
        self._leads: list[_Lead] = []

    def leads(self, epoch: int, compressor: str, payloads: Sequence[Buffer]) -> None:
        """This peer's own increment of `epoch` is in its lead."""
        self._leads.append(_Lead(epoch, compressor, list(payloads)))

    def forget(self) -> None:
        """Nothing is in the lead any more."""
        self._leads.clear()

    def take(self, epoch: int, rumours: Sequence[tuple[Rumour, Sequence[Buffer]]]) -> None:
        """`epoch` is settled with these."""
        assert self.model is not None
        rows = {origin: row for row, origin in enumerate(sorted({rumour.origin for rumour, _ in rumours}))}
        given: list[list[float]] = [[] for _ in rows]
        made = []
        for rumour, parts in rumours:
            row, longest = rows[rumour.origin], self._longest(rumour)
            scale = longest / rumour.length if rumour.length > longest else 1.0
            made.append(_Increment(row, rumour, increments.unpack(parts, self.model.chunks), scale))
            given[row].append(rumour.weight)
        leads = [lead for lead in self._leads if lead.epoch <= epoch]
        self._leads = [lead for lead in self._leads if lead.epoch > epoch]
        # Before a snapshot that would be said to have this inside.
        self._turns.ask(partial(self._begin, _Epoch(epoch, made, list(map(math.fsum, given)), leads)), ahead=True)

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
        epoch, model = self._under_way, self.model
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
        self._judged(epoch.number, epoch.fingerprint)
        self._turns.over()
