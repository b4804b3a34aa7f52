"""Increments of other peers on their way into the anchor: each is inspected whole, then applied whole or refused.

The inspection uses the increment alone, so all peers refuse the same ones. An applied increment can be taken back
exactly if its origin proves void. `broadcast` decides which increments count. No vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.events import IncrementApplied, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["Applying", "length_of"]


@dataclass
class _Increment:
    """An increment under way."""

    rumour: Rumour
    payloads: list[Buffer]
    """one for each chunk"""
    chunks: list[int]
    """the chunks that it moves"""
    back: bool
    """take it back"""
    done: Callable[[], None]
    longest: float
    """largest movement allowed"""
    own: bool
    """it is this peer's own, and the residual takes the rest of a cut"""
    lengths: list[float] = field(default_factory=list)
    """movements of the inspected chunks, before any cut"""
    scale: float = 1.0
    """share of the movement that counts"""
    fingerprint: int = 0
    """of the movement applied so far"""

    @property
    def length(self) -> float:
        """Movement of the whole model, before any cut."""
        return length_of(self.lengths)


def length_of(lengths: Iterable[float]) -> float:
    """Length of a movement from the lengths of its chunks, the same number on every host.

    `fsum`, because `sum` rounds differently since Python 3.12.
    """
    return math.sqrt(math.fsum(length * length for length in lengths))


class Applying:
    """The increments that move this peer's anchor as they come.

    Args:
        exclusive: queue of operations on the whole state.
        terms: the terms of an increment that was cut at this clock.
        longest: the largest movement by this increment. Every peer cuts a longer one to it.
        applied: called with the increment and the fingerprint of the movement, after the anchor has moved.
    """

    def __init__(
        self,
        exclusive: Exclusive,
        outputs: Outputs,
        terms: Callable[[int], Terms],
        longest: Callable[[Rumour], float],
        applied: Callable[[Rumour, int], None],
    ) -> None:
        self._exclusive, self._outputs, self._terms = exclusive, outputs, terms
        self._longest, self._applied = longest, applied
        self._model: Model | None = None
        self._under_way: _Increment | None = None

    def ready(self, model: Model) -> None:
        """The model is here."""
        self._model = model

    def take(
        self, rumour: Rumour, parts: Sequence[Buffer], done: Callable[[], None] = lambda: None, *, back: bool = False
    ) -> None:
        """Apply an increment before any operation that waits, or with `back` take it back.

        Args:
            parts: its payload.
            done: called when it is applied or refused.
        """
        self._exclusive.ask(partial(self._look, rumour, parts, done, back, self._longest(rumour)), ahead=True)

    def cut(self, rumour: Rumour, parts: Sequence[Buffer]) -> None:
        """Cut this peer's own increment, which is in its anchor whole, as all other peers cut it.

        The residual gets the rest, but at most as much as has moved. An increment of up to twice the limit loses
        nothing. A far longer one, a fault, is not sent again round after round.
        """
        longest = self._longest(rumour)
        if rumour.length > longest:
            again = partial(self._look, rumour, parts, lambda: None, False, longest, own=True)
            done = partial(self._exclusive.ask, again, ahead=True)
            self._exclusive.ask(partial(self._look, rumour, parts, done, True, math.inf, own=True), ahead=True)

    def _look(
        self,
        rumour: Rumour,
        parts: Sequence[Buffer],
        done: Callable[[], None],
        back: bool,
        longest: float,
        own: bool = False,
    ) -> bool:
        """Begin an increment. False if there is nothing to do."""
        assert self._model is not None
        payloads = increments.unpack(parts, self._model.chunks)
        if payloads is None:
            self._refuse(rumour)
            done()
            return False
        chunks = [chunk for chunk, payload in enumerate(payloads) if memoryview(payload).nbytes]
        if not chunks:
            done()
            return False
        self._under_way = increment = _Increment(rumour, payloads, chunks, back, done, longest, own)
        self._check(increment, chunks[0])
        return True

    def _refuse(self, rumour: Rumour) -> None:
        self._outputs.emit(UpdateRefused(rumour.origin, "payload"))

    def _check(self, increment: _Increment, chunk: int) -> None:
        rumour = increment.rumour
        compressor, lr = self._terms(rumour.clock)
        self._outputs.ask(jobs.CheckIncrement(chunk, compressor, increment.payloads[chunk], lr, rumour.weight))

    def _apply(self, increment: _Increment, chunk: int) -> None:
        rumour = increment.rumour
        (compressor, lr), payload = self._terms(rumour.clock), increment.payloads[chunk]
        bound = (
            increment.scale * increment.lengths[increment.chunks.index(chunk)] if increment.scale < 1.0 else math.inf
        )
        kept = min(1.0 - increment.scale, increment.scale) if increment.own else 0.0
        self._outputs.ask(jobs.Apply(chunk, compressor, payload, lr, rumour.weight, bound, increment.back, kept))

    def job_done(self, job: jobs.Job[object], result: object) -> None:
        """The result of a CheckIncrement or an Apply."""
        assert isinstance(job, jobs.CheckIncrement | jobs.Apply)
        increment = self._under_way
        assert increment is not None
        last = job.chunk == increment.chunks[-1]
        following = increment.chunks[0] if last else increment.chunks[increment.chunks.index(job.chunk) + 1]
        if isinstance(job, jobs.CheckIncrement):
            inspected = job.typed(result)
            increment.lengths.append(inspected.movement)
            if not inspected.sound or (last and increment.length != increment.rumour.length):
                self._refuse(increment.rumour)
                self._end(increment)
            elif last:
                increment.scale = increment.longest / increment.length if increment.length > increment.longest else 1.0
                self._apply(increment, following)
            else:
                self._check(increment, following)
            return
        increment.fingerprint += job.typed(result).fingerprint
        if not last:
            return self._apply(increment, following)
        assert self._model is not None
        rumour, moved = increment.rumour, increment.scale * increment.length / math.sqrt(self._model.schema.size)
        how = self._terms(rumour.clock).compressor
        if not increment.own:
            event = IncrementApplied(
                rumour.origin, rumour.size, rumour.weight, rumour.hops, moved, how, increment.scale
            )
            self._outputs.emit(event)
        self._applied(rumour, increment.fingerprint)
        self._end(increment)

    def _end(self, increment: _Increment) -> None:
        self._under_way = None
        increment.done()
        self._exclusive.over()
