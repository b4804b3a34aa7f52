"""Others' increments on their way into the anchor: each is looked at whole, and then applied whole, or refused.

A rumour that one peer refuses all refuse, for what decides is in it. What is applied can be taken back, exactly, if its
origin is proven to have lied. Which rumours count is decided in `rumours`; no vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gossipdp.protocol import increments, jobs
from gossipdp.protocol.events import IncrementApplied, UpdateRefused
from gossipdp.protocol.freezing import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rumour_messages import Rumour
from gossipdp.protocol.turns import Turns
from gossipdp.protocol.wire import Buffer

__all__ = ["Applying", "Terms"]


class Terms(NamedTuple):
    """What all peers do alike with an increment."""

    compressor: str
    lr: float
    """alpha"""


@dataclass
class _Increment:
    rumour: Rumour
    payloads: list[Buffer]
    chunks: list[int]
    """which of them move"""
    back: bool
    done: Callable[[], None]
    movement2: float = 0.0
    fingerprint: int = 0


class Applying:
    """Args:

    terms: of an increment cut at this clock.
    applied: called when the anchor has been moved, with the fingerprint of what was added to it.
    """

    def __init__(
        self,
        turns: Turns,
        outputs: Outputs,
        terms: Callable[[int], Terms],
        applied: Callable[[Rumour, int], None],
    ) -> None:
        self._turns, self._outputs, self._terms = turns, outputs, terms
        self._applied = applied
        self.model: Model | None = None
        self._under_way: _Increment | None = None

    def take(
        self, rumour: Rumour, parts: Sequence[Buffer], done: Callable[[], None] = lambda: None, *, back: bool = False
    ) -> None:
        """`rumour` has come, or with `back` what it has done is to be undone: before anything else is begun. `done` is
        called when it has been applied or refused."""
        self._turns.ask(partial(self._look, rumour, parts, done, back), ahead=True)

    def _look(self, rumour: Rumour, parts: Sequence[Buffer], done: Callable[[], None], back: bool) -> bool:
        """Begin with a rumour; whether there is anything to do."""
        assert self.model is not None
        payloads = increments.unpack(parts, self.model.chunks)
        if payloads is None:
            self._refuse(rumour)
            done()
            return False
        chunks = [chunk for chunk, payload in enumerate(payloads) if memoryview(payload).nbytes]
        if not chunks:
            done()
            return False
        self._under_way = made = _Increment(rumour, payloads, chunks, back, done)
        self._check(made, chunks[0])
        return True

    def _refuse(self, rumour: Rumour) -> None:
        self._outputs.emit(UpdateRefused(rumour.origin, "payload"))

    def _check(self, made: _Increment, chunk: int) -> None:
        rumour = made.rumour
        compressor, lr = self._terms(rumour.clock)
        self._outputs.ask(jobs.CheckIncrement(chunk, compressor, made.payloads[chunk], lr, rumour.weight))

    def _apply(self, made: _Increment, chunk: int) -> None:
        rumour = made.rumour
        (compressor, lr), payload = self._terms(rumour.clock), made.payloads[chunk]
        self._outputs.ask(jobs.Apply(chunk, compressor, payload, lr, rumour.weight, back=made.back))

    def job_done(self, job: jobs.Job, result: jobs.Result) -> None:
        """The result of a CheckIncrement or an Apply."""
        assert isinstance(job, jobs.CheckIncrement | jobs.Apply)
        made = self._under_way
        assert made is not None
        last = job.chunk == made.chunks[-1]
        following = made.chunks[0] if last else made.chunks[made.chunks.index(job.chunk) + 1]
        if isinstance(job, jobs.CheckIncrement):
            if not result.sound:
                self._refuse(made.rumour)
                self._end(made)
            elif last:
                self._apply(made, following)
            else:
                self._check(made, following)
            return
        made.movement2 += result.movement**2
        made.fingerprint += result.fingerprint
        if not last:
            return self._apply(made, following)
        assert self.model is not None
        rumour, movement = made.rumour, math.sqrt(made.movement2 / self.model.schema.size)
        how = self._terms(rumour.clock).compressor
        self._outputs.emit(IncrementApplied(rumour.origin, rumour.size, rumour.weight, rumour.hops, movement, how))
        self._applied(rumour, made.fingerprint)
        self._end(made)

    def _end(self, made: _Increment) -> None:
        self._under_way = None
        made.done()
        self._turns.over()
