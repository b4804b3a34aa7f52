"""Whether a fetched state is one that the network trains. A second member's values at a few places show it.

A source signs what it froze, so a joiner knows whose state it has, but not whether it is any good. With each manifest
the joiner asks two other members, the witnesses, for 16 short runs of their own anchors and for a sketch of each chunk,
in which every value counts (algorithms section 8). Anchors differ. A witness says how far: the distance at its last
exchanges, and its step since the state was frozen. A state further off than `TIMES` that, as a whole or in one chunk,
is refused if one witness denies it and none vouches for it. Its chunks are then fetched from another source. Without
any witness the state is accepted unverified, and an event says so. One liar is found out. A source and a witness that
lie together are not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import StateJudged, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import StateManifest, StateProbe, StateRefuse, StateSample, StateSketches

__all__ = ["Judge", "Witness"]

RUNS: Final = 16
"""Places compared."""
WITNESSES: Final = 2
"""Members asked. One may be silent, or lie."""
TIMES: Final = 5.0
"""A state this many times as far off as two anchors at their last exchange is still plausible."""
ROUNDING: Final = 2.0**-8
"""Relative rounding of bfloat16."""
AGE: Final = 3.0
"""Rounds that a state may be old, by the source's own count, when it is given."""
MOST_ROUNDS: Final = 32.0
"""Rounds of movement that a state may be older than the sample. A source could claim any age."""
OF_CHUNK: Final = 2.0
"""A single chunk may be this many times as far off. Chunks differ, and a sketch only estimates."""
APART: Final = MOST_ROUNDS / TIMES
"""Distance, in rounds of own movement, that is still plausible between two peers before their first exchange."""
FORMER: Final = 8
"""Sources that have given no chunk yet, and are remembered with their samples."""
QUEUE: Final = 64
"""Joiners that may wait for a sample. The next one is refused."""


def _bound(distance: float, step: float, rounds: float, scale: float) -> float:
    """The distance up to which a state is plausible.

    Args:
        distance: of the witness's anchor to others.
        step: of the witness's anchor in one round.
        rounds: between the state and the sample.
        scale: of the values. All RMS per parameter, NaN for an unknown distance.
    """
    usual = APART * step if math.isnan(distance) else distance
    return TIMES * max(usual, math.sqrt(2.0) * step) + min(rounds, MOST_ROUNDS) * step + ROUNDING * scale


def _of_chunks(chunks: Sequence[jobs.ChunkCompared], rounds: float) -> list[tuple[float, float]]:
    """By how much each chunk's sketches differ, and by how much they may. A chunk that never stepped is left out."""
    known = [each for each in chunks if math.isfinite(each.step) and not math.isinf(each.distance)]
    return [(each.off, OF_CHUNK * _bound(each.distance, each.step, rounds, each.scale)) for each in known]


class Witness:
    """Serves samples of this peer's anchor."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._waiting: deque[tuple[bytes, int, bool]] = deque()

    def receive(self, message: StateProbe, source: bytes, size: int, *, sketches: bool) -> None:
        """`source` asks for a sample.

        Args:
            size: parameters of this peer's model.
            sketches: `source` speaks a protocol version that has them.
        """
        if len(self._waiting) >= QUEUE or max(message.starts) >= size:
            self._outputs.send(source, StateRefuse(message.transfer, Refusal.BUSY))
            return
        self._waiting.append((source, message.transfer, sketches))
        self._outputs.ask(jobs.Sample(message.starts))

    def sampled(self, result: jobs.Sampled, clock: int, rounds: int) -> None:
        """The result of the oldest Sample."""
        peer, transfer, sketches = self._waiting.popleft()
        if math.isnan(result.step):
            # It has not stepped yet and cannot know how far others get in a round. With the source of its own state it
            # may have exchanged at no distance at all.
            self._outputs.send(peer, StateRefuse(transfer, Refusal.NEW))
            return
        # A peer that has not exchanged does not know how far apart such anchors are.
        distance = APART * result.step if math.isnan(result.distance) else result.distance
        if sketches:
            sketched = StateSketches(transfer, clock, rounds, distance, result.step)
            self._outputs.send(peer, sketched, [result.payload, result.sketches])
        else:
            self._outputs.send(peer, StateSample(transfer, clock, rounds, distance, result.step), [result.payload])


@dataclass
class _Part:
    """What one source gives under one manifest."""

    source: bytes
    manifest: StateManifest
    runs: dict[int, int]
    """The first parameter of the run in each chunk."""
    asked: set[bytes]
    samples: list[tuple[bytes, StateSample, Sequence[Buffer]]] = field(default_factory=list)
    chunks: set[int] = field(default_factory=set)
    """Chunks that came from this source."""
    vouched: bool = False
    denied: bool = False


class Judge:
    """Judges one transfer, with all its sources.

    Args:
        patience: Seconds to wait for a witness once all chunks are here.
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
        """`source` will give `missing` under `manifest`. Ask witnesses at once, because anchors move.

        Args:
            spans: The parameters of each chunk.
            members: Candidates for witnesses.
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
        """A witness has sent its sample."""
        part = self._parts.get(message.transfer)
        if part is not None and source in part.asked:
            part.asked.discard(source)
            if math.isfinite(message.distance) and math.isfinite(message.step):
                part.samples.append((source, message, buffers))

    def excused(self, peer: bytes, transfer: int | None = None) -> None:
        """`peer` will be no witness: it refuses, for this transfer, or is gone (None)."""
        for number, part in self._parts.items():
            if transfer in (None, number):
                part.asked.discard(peer)

    def came(self, chunk: int, transfer: int) -> None:
        """`chunk`, as frozen for `transfer`, replaces what was there before."""
        self.lost(chunk)
        self._parts[transfer].chunks.add(chunk)

    def lost(self, chunk: int) -> None:
        """`chunk` was not the one that its source had signed."""
        for part in self._parts.values():
            part.chunks.discard(chunk)

    def settled(self, now: float) -> bool:
        """All chunks are here: whether all are judged. The caller asks again after each input."""
        if self._comparing is not None:
            return False
        for part in self._parts.values():
            if part.samples and part.chunks:
                self._compare(part)
                return False
        parts = {transfer: part for transfer, part in self._parts.items() if part.chunks}
        silent = [(peer, transfer) for transfer, part in parts.items() for peer in sorted(part.asked)]
        if silent and self._deadline is None:
            # The first request, or its answer, may have been lost.
            self._deadline = now + self._patience
            for peer, transfer in silent:
                self._probe(peer, transfer)
        return not silent or now >= (self._deadline or now)

    def _compare(self, part: _Part) -> None:
        peer, sample, (payload, *sketches) = part.samples[0]
        runs, offset = [], 0
        for chunk, start in part.runs.items():
            length = min(jobs.RUN, part.manifest.parameters - start)
            if chunk in part.chunks:
                runs.append((offset, start, length))
            offset += length
        starts, chunks = tuple(part.runs.values()), tuple(sorted(part.chunks))
        self._outputs.ask(jobs.Compare(tuple(runs), offset, payload, starts, chunks, *sketches))
        self._comparing = part, peer, sample
        del part.samples[0]

    def compared(self, result: jobs.Compared | None) -> None:
        """The result of the Compare. None: the sample was malformed."""
        assert self._comparing is not None
        (part, witness, sample), self._comparing = self._comparing, None
        if result is None:
            self._outputs.emit(UpdateRefused(witness, Fault.PAYLOAD))
            return
        rounds = AGE + abs(sample.clock - part.manifest.clock) * sample.rounds / max(1, sample.clock)
        whole = (result.distance, _bound(sample.distance, sample.step, rounds, result.scale))
        pairs = [whole, *_of_chunks(result.chunks, rounds)]
        known = [pair for pair in pairs if not math.isnan(pair[0])]
        if not known:
            # The sample covers no chunk of this source.
            return
        distance, bound = next((pair for pair in known if pair[0] > pair[1]), known[0])
        plausible = distance <= bound
        self._outputs.emit(StateJudged(part.source, witness, plausible, distance, bound))
        part.denied |= not plausible
        if plausible:
            # Of a source and a witness that differ, one lies. A second witness that agrees with the source decides.
            part.vouched = True
            part.samples.clear()
            part.asked.clear()

    def sentence(self) -> dict[bytes, set[int]]:
        """Once settled: the sources whose state is implausible, and the chunks that they gave. The rest is accepted."""
        refused: dict[bytes, set[int]] = {}
        for part in self._parts.values():
            if part.chunks and part.denied and not part.vouched:
                self._outputs.emit(UpdateRefused(part.source, Fault.IMPLAUSIBLE))
                refused.setdefault(part.source, set()).update(part.chunks)
            elif part.chunks and not part.vouched:
                self._outputs.emit(StateJudged(part.source, b"", True, math.nan, math.nan))
        self._parts.clear()
        self._deadline = None
        return refused

    def timer(self) -> float | None:
        """When `settled` is to be asked again, or None."""
        return self._deadline if self._comparing is None else None
