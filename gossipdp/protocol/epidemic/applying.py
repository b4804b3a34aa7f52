"""Others' increments on their way into the anchor: each is looked at whole, and then applied whole, or refused.

A rumour that one peer refuses all refuse, for what decides is in it. What is applied can be taken back, exactly, if its
origin is proven to have lied. Which rumours count is decided in `rumours`; no vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.events import IncrementApplied, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["Applying", "Terms", "length_of"]


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
    longest: float
    own: bool
    lengths: list[float] = field(default_factory=list)
    """of the chunks, before any cut"""
    scale: float = 1.0
    fingerprint: int = 0

    @property
    def length(self) -> float:
        return length_of(self.lengths)


def length_of(lengths: Iterable[float]) -> float:
    """Of a whole movement, from those of its chunks: the same number on every host (`sum` rounds otherwise since Python
    3.12)."""
    return math.sqrt(math.fsum(length * length for length in lengths))


class Applying:
    """Args:

    terms: of an increment cut at this clock.
    longest: how far this one may move an anchor, while its epoch is live: what is longer is cut to that, by all alike.
    applied: called when the anchor has been moved, with the fingerprint of what was added to it.
    """

    def __init__(
        self,
        turns: Exclusive,
        outputs: Outputs,
        terms: Callable[[int], Terms],
        longest: Callable[[Rumour], float],
        applied: Callable[[Rumour, int], None],
    ) -> None:
        self._turns, self._outputs, self._terms = turns, outputs, terms
        self._longest, self._applied = longest, applied
        self.model: Model | None = None
        self._under_way: _Increment | None = None

    def take(
        self, rumour: Rumour, parts: Sequence[Buffer], done: Callable[[], None] = lambda: None, *, back: bool = False
    ) -> None:
        """`rumour` has come, or with `back` what it has done is to be undone: before anything else is begun. `done` is
        called when it has been applied or refused."""
        self._turns.ask(partial(self._look, rumour, parts, done, back, self._longest(rumour)), ahead=True)

    def cut(self, rumour: Rumour, parts: Sequence[Buffer]) -> None:
        """This peer's own is in its anchor whole: make that what it is at all others. What is cut off goes back to the
        residual, as much again as has moved at the most: of up to twice the longest nothing is lost, and one fault is
        not sent round after round for as long as the residual remembers it."""
        longest = self._longest(rumour)
        if rumour.length > longest:
            again = partial(self._look, rumour, parts, lambda: None, False, longest, own=True)
            done = partial(self._turns.ask, again, ahead=True)
            self._turns.ask(partial(self._look, rumour, parts, done, True, math.inf, own=True), ahead=True)

    def _look(
        self,
        rumour: Rumour,
        parts: Sequence[Buffer],
        done: Callable[[], None],
        back: bool,
        longest: float,
        own: bool = False,
    ) -> bool:
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
        self._under_way = made = _Increment(rumour, payloads, chunks, back, done, longest, own)
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
        bound = made.scale * made.lengths[made.chunks.index(chunk)] if made.scale < 1.0 else math.inf
        kept = min(1.0 - made.scale, made.scale) if made.own else 0.0
        self._outputs.ask(jobs.Apply(chunk, compressor, payload, lr, rumour.weight, bound, made.back, kept))

    def job_done(self, job: jobs.Job[object], result: object) -> None:
        """The result of a CheckIncrement or an Apply."""
        assert isinstance(job, jobs.CheckIncrement | jobs.Apply)
        made = self._under_way
        assert made is not None
        last = job.chunk == made.chunks[-1]
        following = made.chunks[0] if last else made.chunks[made.chunks.index(job.chunk) + 1]
        if isinstance(job, jobs.CheckIncrement):
            inspected = job.typed(result)
            made.lengths.append(inspected.movement)
            if not inspected.sound or (last and made.length != made.rumour.length):
                self._refuse(made.rumour)
                self._end(made)
            elif last:
                made.scale = made.longest / made.length if made.length > made.longest else 1.0
                self._apply(made, following)
            else:
                self._check(made, following)
            return
        made.fingerprint += job.typed(result).fingerprint
        if not last:
            return self._apply(made, following)
        assert self.model is not None
        rumour, moved = made.rumour, made.scale * made.length / math.sqrt(self.model.schema.size)
        how = self._terms(rumour.clock).compressor
        if not made.own:
            event = IncrementApplied(rumour.origin, rumour.size, rumour.weight, rumour.hops, moved, how, made.scale)
            self._outputs.emit(event)
        self._applied(rumour, made.fingerprint)
        self._end(made)

    def _end(self, made: _Increment) -> None:
        self._under_way = None
        made.done()
        self._turns.over()
