"""Is a fetched state what the network trains? A second peer's values of a few places in it say so.

A source signs what it froze, so a joiner knows whose state it has, not whether it is any good. With every manifest it
therefore asks two other members, the witnesses, for 16 short runs of their own anchors (algorithms section 8). Anchors
differ, by what the witness knows: the distance at its last exchanges, and its steps since the state was frozen. A state
further off than `TIMES` that is refused, if no witness vouches for it and one denies it; chunks of it are then fetched
elsewhere. Where nobody can be asked the state is taken unvouched, and that is told. One liar is found out; a source and
a witness that lie together are not. No vector is touched here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.events import StateJudged, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import StateManifest, StateProbe, StateRefuse, StateSample

__all__ = ["Judge", "Witness"]

RUNS: Final = 16
"""places compared"""
WITNESSES: Final = 2
"""members asked: one may be silent, or lie"""
TIMES: Final = 5.0
"""the distance of two anchors at their last exchange, so many times, is still plausible"""
ROUNDING: Final = 2.0**-8
"""of bfloat16, relative"""
AGE: Final = 3.0
"""rounds that a state may be old by the source's own count when it is given"""
MOST_ROUNDS: Final = 32.0
"""of movement that a state may be older than the sample; a source could claim any age"""
APART: Final = MOST_ROUNDS / TIMES
"""steps between the anchors of two that have exchanged with nobody yet: so many rounds' movement is plausible"""
FORMER: Final = 8
"""sources of which nothing came, yet, that are remembered with their samples"""
QUEUE: Final = 64
"""joiners that wait for a sample at once; the next is told `busy`"""


class Witness:
    """Serves samples of this peer's anchor."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._waiting: deque[tuple[bytes, int]] = deque()

    def receive(self, message: StateProbe, source: bytes, size: int) -> None:
        """`source` asks for a sample; `size`: parameters of this peer's model."""
        if len(self._waiting) >= QUEUE or max(message.starts) >= size:
            self._outputs.send(source, StateRefuse(message.transfer, "busy"))
            return
        self._waiting.append((source, message.transfer))
        self._outputs.ask(jobs.Sample(message.starts))

    def sampled(self, result: jobs.Sampled, clock: int, rounds: int) -> None:
        """The result of the oldest Sample."""
        peer, transfer = self._waiting.popleft()
        if math.isnan(result.step):
            # It has not stepped yet, and cannot know how far others get in a round: with whoever it has its own state
            # from, it may have exchanged at no distance at all.
            self._outputs.send(peer, StateRefuse(transfer, "new"))
            return
        # Who has not exchanged does not know how far apart anchors are that have not, either.
        distance = APART * result.step if math.isnan(result.distance) else result.distance
        self._outputs.send(peer, StateSample(transfer, clock, rounds, distance, result.step), [result.payload])


@dataclass
class _Part:
    """What one source gives: the state, or a part of it, under one manifest."""

    source: bytes
    manifest: StateManifest
    runs: dict[int, int]
    """chunk: first parameter of the run in it"""
    asked: set[bytes]
    samples: list[tuple[bytes, StateSample, Buffer]] = field(default_factory=list)
    chunks: set[int] = field(default_factory=set)
    """that came from there"""
    vouched: bool = False
    denied: bool = False


class Judge:
    """The joiner's side of it, for one transfer with all its sources.

    Args:
        patience: seconds a witness is waited for once everything is here.
    """

    def __init__(self, outputs: Outputs, random: Random, patience: float) -> None:
        self._outputs, self._random, self._patience = outputs, random, patience
        self._parts: dict[int, _Part] = {}
        self._comparing: tuple[_Part, bytes, StateSample] | None = None
        self._deadline: float | None = None

    def summon(
        self,
        transfer: int,
        source: bytes,
        manifest: StateManifest,
        spans: Sequence[slice],
        missing: Sequence[int],
        members: Sequence[bytes],
    ) -> None:
        """`source` will give `missing` under `manifest`: ask others for runs of it, at once, because anchors move.

        Args:
            spans: where each chunk stands.
        """
        if not missing:
            return
        others = [peer for peer in members if peer != source]
        witnesses = self._random.sample(others, min(WITNESSES, len(others)))
        idle = [former for former, part in self._parts.items() if not part.chunks]
        for former in idle[:-FORMER]:
            del self._parts[former]
        runs = {}
        for chunk in sorted(self._random.sample(missing, min(RUNS, len(missing)))):
            span = spans[chunk]
            runs[chunk] = self._random.randint(span.start, max(span.start, span.stop - jobs.RUN))
        self._parts[transfer] = _Part(source, manifest, runs, set(witnesses))
        for peer in witnesses:
            self._probe(peer, transfer)

    def _probe(self, peer: bytes, transfer: int) -> None:
        self._outputs.send(peer, StateProbe(transfer, tuple(self._parts[transfer].runs.values())))

    def heard(self, message: StateSample, buffers: Sequence[Buffer], source: bytes) -> None:
        """A witness has sent its values."""
        part = self._parts.get(message.transfer)
        if part is not None and source in part.asked:
            part.asked.discard(source)
            if math.isfinite(message.distance) and math.isfinite(message.step):
                part.samples.append((source, message, buffers[0]))

    def excused(self, peer: bytes, transfer: int | None = None) -> None:
        """`peer` will be no witness: it refuses, for this transfer, or is gone."""
        for number, part in self._parts.items():
            if transfer in (None, number):
                part.asked.discard(peer)

    def came(self, chunk: int, transfer: int) -> None:
        """`chunk` is being taken in as it was frozen for `transfer`, in the place of what was there before."""
        self.lost(chunk)
        self._parts[transfer].chunks.add(chunk)

    def lost(self, chunk: int) -> None:
        """It was not what its source had signed."""
        for part in self._parts.values():
            part.chunks.discard(chunk)

    def settled(self, now: float) -> bool:
        """Everything is here. Has everything been judged? To be asked again after every input until it is so."""
        if self._comparing is not None:
            return False
        for part in self._parts.values():
            if part.samples and part.chunks:
                self._compare(part)
                return False
        parts = {transfer: part for transfer, part in self._parts.items() if part.chunks}
        silent = [(peer, transfer) for transfer, part in parts.items() for peer in sorted(part.asked)]
        if silent and self._deadline is None:
            # What was asked at first, or the answer, may have been lost since.
            self._deadline = now + self._patience
            for peer, transfer in silent:
                self._probe(peer, transfer)
        return not silent or now >= (self._deadline or now)

    def _compare(self, part: _Part) -> None:
        peer, sample, payload = part.samples.pop(0)
        self._comparing = part, peer, sample
        runs, offset = [], 0
        for chunk, start in part.runs.items():
            length = min(jobs.RUN, part.manifest.parameters - start)
            if chunk in part.chunks:
                runs.append((offset, start, length))
            offset += length
        self._outputs.ask(jobs.Compare(tuple(runs), offset, payload))

    def compared(self, result: jobs.Compared | None) -> None:
        """The result of the Compare asked for; None: the sample was malformed."""
        assert self._comparing is not None
        (part, witness, sample), self._comparing = self._comparing, None
        if result is None:
            self._outputs.emit(UpdateRefused(witness, "payload"))
            return
        if math.isnan(result.distance):
            # None of the chunks it speaks of came from this source.
            return
        rounds = abs(sample.clock - part.manifest.clock) * sample.rounds / max(1, sample.clock)
        spread = max(sample.distance, math.sqrt(2.0) * sample.step)
        bound = TIMES * spread + min(AGE + rounds, MOST_ROUNDS) * sample.step + ROUNDING * result.scale
        plausible = result.distance <= bound
        self._outputs.emit(StateJudged(part.source, witness, plausible, result.distance, bound))
        part.denied |= not plausible
        if plausible:
            # Of a source and a witness that differ one lies; a second witness that agrees with the source decides it.
            part.vouched = True
            part.samples.clear()
            part.asked.clear()

    def sentence(self) -> dict[bytes, set[int]]:
        """Once settled: the sources whose state is not plausible, and the chunks they gave; the rest is taken."""
        refused: dict[bytes, set[int]] = {}
        for part in self._parts.values():
            if part.chunks and part.denied and not part.vouched:
                self._outputs.emit(UpdateRefused(part.source, "implausible"))
                refused.setdefault(part.source, set()).update(part.chunks)
            elif part.chunks and not part.vouched:
                self._outputs.emit(StateJudged(part.source, b"", True, math.nan, math.nan))
        self._parts.clear()
        self._deadline = None
        return refused

    def timer(self) -> float | None:
        return self._deadline if self._comparing is None else None
