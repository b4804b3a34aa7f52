"""`epidemic`: every peer's compressed increment reaches everybody, and identical replicas need no barrier.

    e <- beta e + D;   c = Q2(TopK(e));   e <- e - c            D as in the ledger; e is the ledger's v
    a <- a - alpha p c, for every message once, in any order    p: fixed by the sender, about 1 in all

SparseLoCo (arXiv 2508.15706) with delays; with none, it is that. The movement of one message is rounded once, to the
ledger's integers, and integers commute: replicas that applied the same set of messages are the same bits, whatever
came first (see `fixed_point`). Who applies what, once, and when an epoch is closed, is the protocol's to know.

Guards. What a *receiver* does must be the same at all of them, so it looks only at the message and at what the epoch
agreed on: the payload decodes; 0 < p <= 1 and 0 <= alpha <= 8; no parameter moves by more than 2^20; the movement alpha
p c of a chunk is scaled down to `bound`. Its length cannot be held against the receiver's own e or a: both differ from
peer to peer at any moment. `bound` follows from what settled epochs' increments said of their lengths, which all know
alike (`protocol/epochs`). A *sender* looks at what it likes, for it ends up in the message: it may keep its movement
under `bound`, and it listens for an overshoot. The daemon's limit is on all chunks together, which are known when the
last is made: so it cuts its own as all others do, and then e <- e + kept c takes the rest back. A parameter that waited
T rounds in e moves by up to T rounds' worth of D at once, more than there was to go when training is fast; then the
next D there points back. So what is offered to the compressor shrinks while cos(D, last c) on the support of c is under
-0.3, and grows again when it is not; the rest stays in e.

With a robust rule an increment is applied when its epoch has settled, all of them at once, for the rule looks at all.
That is some five epochs later, and an outer step that comes so late is unstable at any useful alpha, if meanwhile the
peer goes back to what is shared. So it does not: its own increments lead, each whole and at alpha 1, until theirs is
settled (as in CO2, arXiv 2401.16265, and DaSGD, arXiv 2006.00441: averages that land late on local steps that went on).

Buffers (past `trainable`) are averages of the peers' own: alpha and beta 1, and sent whole, as bfloat16: c = e but for
the rounding, so a_new = sum_i p_i x_i when the weights add up to 1. They are few, and top-k of a variance is none.

A lone peer does not publish. Its outer step is the ledger's with lr 1 and momentum 0: a := x, e := 0, and x is not
touched: the bare optimizer bit for bit. What e held then is dropped (at most alpha p ||e|| of the mean): let out at
weight 1 it would be many rounds' worth of old steps at once. It is alone until it gives its state away, and no longer:
a step that is not in a message would be missing at whoever has that state.

This module knows chunks and jobs, not peers or messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.epidemic import robust
from gossipdp.algorithms.epidemic.fixed_point import (
    SCALE,
    FixedLedger,
    Integers,
    Where,
    fingerprint,
    magnitude,
    to_fixed,
)
from gossipdp.algorithms.ledger import OnLedger, longest_of_late
from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.whole import WHOLE
from gossipdp.protocol import jobs

__all__ = ["MOST_LR", "Epidemic"]

MOST_LR: Final = 8.0
"""of alpha; useful are 1 to 4, and somewhere past that every run explodes"""
OVERSHOT: Final = -0.3
"""cos(D, last c) that only an overshoot explains; noisy progress alone makes it -0.1 to -0.2"""
DEVIATIONS: Final = 2.0
"""standard deviations of the cosine, 1 / sqrt(parameters), by which it has to be below that: few say little"""
RETREAT: Final = 0.7
ADVANCE: Final = 1.1
"""of the share of e that is offered, a round; from 1 down to `LEAST_SHARE`"""
LEAST_SHARE: Final = 1e-3
MOST_MOVED: Final = 2.0**20
"""of one parameter by one message"""
SAFE: Final = 0.98
"""what is held back is aimed so far below its limit, for levels are rounded to 2^-9"""
DENSE: Final = 0.25
"""share of a chunk past which it is moved whole"""


class _Increment:
    """alpha p c of one chunk as integers: `terms` at `where`."""

    def __init__(self, where: Where, terms: Integers) -> None:
        self.where, self.terms, self.length = where, terms, magnitude(terms)

    def bounded(self, bound: float) -> Integers:
        """The terms, scaled down where they are longer than `bound`."""
        if not self.length > bound:
            return self.terms
        # towards zero, so that rounding does not lengthen what was just cut
        cut: Integers = np.trunc(self.terms * (bound / self.length)).astype(np.int64)
        return cut


class Epidemic(OnLedger):
    """The vectors of one peer and the jobs on them.

    Args:
        compressors: those a job may name.
        bad: share of the contributors that robust rules count with.
    """

    ledger: FixedLedger

    def __init__(self, *, compressors: Mapping[str, Compressor] = COMPRESSORS, bad: float = robust.SHARE) -> None:
        self._compressors, self._bad = compressors, bad

    def run(self, job: jobs.Job) -> jobs.Result:
        match job:
            case jobs.Publish():
                return self._publish(job)
            case jobs.Apply(chunk, compressor, payload, lr, weight, bound, back, kept):
                increment = self._increment(chunk, compressor, payload, lr, weight)
                if increment is None:
                    return jobs.Inspected(False)
                added = self._move(chunk, increment, bound, back=back)
                if kept:
                    # Buffers are replaced by averages, not added to: their next D has all that the cut left undone.
                    trainable, c = self._parts(chunk)[0], self._decode(chunk, compressor, payload)
                    self.ledger.v[self.ledger.span(chunk)][:trainable] += np.float32(kept) * c[:trainable]
                return jobs.Inspected(True, increment.length, added)
            case jobs.CheckIncrement(chunk, compressor, payload, lr, weight):
                increment = self._increment(chunk, compressor, payload, lr, weight)
                return jobs.Inspected(increment is not None, 0.0 if increment is None else increment.length)
            case jobs.MeasureEpoch():
                return self._measure(job)
            case jobs.ApplyEpoch():
                return self._apply_epoch(job)
            case jobs.Digest(chunk):
                return jobs.Digested(self.ledger.digest(chunk))
            case jobs.Fingerprint(chunk):
                return jobs.Fingerprinted(self.ledger.fingerprint(chunk))
        return super().run(job)

    def allocate(self, size: int, trainable: int, chunk_parameters: int) -> None:
        """Make room for a model; what was held before is gone."""
        self.ledger = FixedLedger(size, trainable, chunk_parameters)
        self._measured, self._distances = 0, robust.Distances(0)
        """of the epoch that was measured last"""
        self._share: NDArray[np.float64] = np.ones(self.ledger.chunks)
        self._last: dict[int, tuple[str, Buffer]] = {}
        """compressor and payload of the own last message, by chunk"""
        self._longest: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """the longest step of late"""
        self._moved: NDArray[np.float64] = np.zeros(self.ledger.chunks)
        """how far messages have moved a chunk since the last own one"""

    def most_bytes(self, chunk: int, compressor: str) -> int:
        """The longest payload of this chunk that is taken."""
        trainable, buffers = self._parts(chunk)
        head = self._compressors[compressor].most_bytes(trainable) if trainable else 0
        return head + WHOLE.most_bytes(buffers)

    # -- payloads ---------------------------------------------------------------------------------------------

    def _parts(self, chunk: int) -> tuple[int, int]:
        """How many parameters of the chunk are trainable, and how many are buffers."""
        span = self.ledger.span(chunk)
        trainable = min(max(self.ledger.trainable - span.start, 0), span.stop - span.start)
        return trainable, span.stop - span.start - trainable

    def _encode(self, chunk: int, compressor: str, values: Vector, seed: int) -> Buffer:
        trainable, buffers = self._parts(chunk)
        head = self._compressors[compressor].encode(values[:trainable], seed=seed) if trainable else b""
        return head if not buffers else b"".join((head, WHOLE.encode(values[trainable:], seed=seed)))

    def _decode(self, chunk: int, compressor: str, payload: Buffer) -> Vector:
        """What everybody reads in a payload. Raises PayloadError."""
        trainable, buffers = self._parts(chunk)
        data = memoryview(payload).cast("B")
        if not 2 * buffers <= data.nbytes <= self.most_bytes(chunk, compressor):
            raise PayloadError(f"{data.nbytes} bytes, wanted {self.most_bytes(chunk, compressor)} at the most")
        split = data.nbytes - WHOLE.most_bytes(buffers)
        if not trainable:
            return WHOLE.decode(data, buffers)
        values = self._compressors[compressor].decode(data[:split], trainable)
        return values if not buffers else np.concatenate([values, WHOLE.decode(data[split:], buffers)])

    def _terms(self, chunk: int, values: Vector | NDArray[np.float64], lr: float, weight: float) -> _Increment:
        trainable, buffers = self._parts(chunk)
        moved = np.flatnonzero(values != 0.0)
        where: Where = moved if len(moved) <= DENSE * len(values) else slice(None)
        if buffers and trainable:
            scale = np.full(len(values), lr * weight)
            scale[trainable:] = weight
            return _Increment(where, to_fixed(values[where] * scale[where], MOST_MOVED))
        scaled = np.multiply(values[where], lr * weight if trainable else weight, dtype=np.float64)
        return _Increment(where, to_fixed(scaled, MOST_MOVED))

    def _increment(self, chunk: int, compressor: str, payload: Buffer, lr: float, weight: float) -> _Increment | None:
        """What a message would move this chunk by; None if it is not to be taken."""
        values = self._values(chunk, compressor, payload, lr, weight)
        return None if values is None else self._terms(chunk, values, lr, weight)

    def _values(self, chunk: int, compressor: str, payload: Buffer, lr: float, weight: float) -> Vector | None:
        """What a message says of this chunk; None if it is not to be taken."""
        if not (0.0 <= lr <= MOST_LR and 0.0 < weight <= 1.0):
            return None
        try:
            return self._decode(chunk, compressor, payload)
        except PayloadError:
            return None

    # -- steps ------------------------------------------------------------------------------------------------

    def _outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> jobs.Stepped:
        if lr != 1.0 or momentum != 0.0:
            raise ValueError(f"lr {lr}, momentum {momentum}: a lone peer's anchor is its model")
        pseudo_gradient, movement = self.ledger.outer_step(chunk, lr, momentum, applied)
        self._forget(chunk)
        movement2 = _norm2(movement)
        self._longest[chunk] = longest_of_late(self._longest[chunk], math.sqrt(movement2))
        return jobs.Stepped(_norm2(pseudo_gradient), movement2)

    def _taken(self, chunk: int, taken: bool) -> jobs.Checked:
        if taken:
            self._forget(chunk)
        return jobs.Checked(taken)

    def _forget(self, chunk: int) -> None:
        """The anchor did not come here by the own last message."""
        self._last.pop(chunk, None)
        self._share[chunk] = 1.0

    def _publish(self, job: jobs.Publish) -> jobs.Published:
        chunk, ledger, lr, weight = job.chunk, self.ledger, job.lr, job.weight
        if not (0.0 <= lr <= MOST_LR and 0.0 < weight <= 1.0 and 0.0 <= job.beta <= 1.0):
            raise ValueError(f"lr {lr} of 0 to {MOST_LR}, weight {weight} of 0 to 1, beta {job.beta} of 0 to 1")
        assert ledger.x is not None
        span, trainable = ledger.span(chunk), self._parts(chunk)[0]
        d, e = self._progress(chunk, job.applied), ledger.v[span].copy()
        e[:trainable] *= np.float32(job.beta)
        with np.errstate(over="ignore", invalid="ignore"):
            e += d
            d2, e2 = _norm2(d), _norm2(e)
        if not math.isfinite(d2 + e2):
            return jobs.Published(b"")
        offered, share = e.copy(), self._offered_share(chunk, d)
        offered[:trainable] *= np.float32(share)
        payload = self._encode(chunk, job.compressor, offered, job.seed)
        sent = self._decode(chunk, job.compressor, payload)
        increment = self._terms(chunk, sent, lr, weight)
        if increment.length > job.bound:
            within = SAFE * job.bound / increment.length
            share *= within
            payload = self._encode(chunk, job.compressor, offered * np.float32(within), job.seed)
            sent = self._decode(chunk, job.compressor, payload)
            increment = self._terms(chunk, sent, lr, weight)
        self._last[chunk] = job.compressor, payload
        e -= sent
        ledger.v[span] = e
        pending = ledger.pending(chunk)
        pending += d
        added = 0
        if job.lead:
            self._lead(chunk, sent)
        else:
            added = self._move(chunk, increment, job.bound)
        self._longest[chunk] = longest_of_late(self._longest[chunk], self._moved[chunk])
        self._moved[chunk] = 0.0
        return jobs.Published(payload, increment.length, d2, _norm2(sent), _norm2(e), share, added)

    def _offered_share(self, chunk: int, d: Vector) -> float:
        """How much of e to offer, now that D is there to be held against the last c."""
        if chunk in self._last:
            trainable = self._parts(chunk)[0]
            c = self._decode(chunk, *self._last[chunk])[:trainable]
            there = d[:trainable][c != 0.0]
            limit = OVERSHOT - DEVIATIONS / math.sqrt(max(len(there), 1))
            overshot = float(np.dot(d[:trainable], c)) < limit * math.sqrt(_norm2(there) * _norm2(c))
            self._share[chunk] *= RETREAT if overshot else ADVANCE
            self._share[chunk] = min(max(self._share[chunk], LEAST_SHARE), 1.0)
        return float(self._share[chunk])

    def _progress(self, chunk: int, applied: int) -> Vector:
        """D = a - (x + slots > applied)."""
        ledger, span = self.ledger, self.ledger.span(chunk)
        assert ledger.x is not None
        progress: Vector = ledger.a[span] - (ledger.x[span] + ledger.outstanding(chunk, applied))
        return progress

    # -- settled epochs ---------------------------------------------------------------------------------------

    def _measure(self, job: jobs.MeasureEpoch) -> jobs.Measured:
        if job.chunk == 0:
            self._distances = robust.Distances(len(job.weights))
            self._measured = 0
        if job.chunk != self._measured or len(job.weights) != len(self._distances.finite):
            raise ValueError(f"chunk {job.chunk} of an epoch of which {self._measured} chunks are measured")
        rows, increments = self._rows(job)
        # Buffers have units of their own, and would drown the rest.
        self._distances.add(rows[:, : self._parts(job.chunk)[0]])
        for term, increment in zip(job.terms, increments, strict=True):
            self._distances.finite[term.row] &= increment is not None
        self._measured += 1
        movements = tuple(0.0 if increment is None else increment.length for increment in increments)
        return jobs.Measured(tuple(increment is not None for increment in increments), movements)

    def _apply_epoch(self, job: jobs.ApplyEpoch) -> jobs.EpochApplied:
        if self._measured != self.ledger.chunks or len(job.weights) != len(self._distances.finite):
            raise ValueError(f"{self._measured} chunks are measured, of {len(self._distances.finite)} contributors")
        rows, _ = self._rows(job)
        counted = self._distances.finite & (np.array(job.weights) > 0.0)
        # The rule gives a mean: of an epoch in which few have published, and one claims to be all, it is still a share.
        weight = robust.together(np.array(job.weights)[counted].tolist())
        trainable = self._parts(job.chunk)[0]
        parts = [self._judged(job, job.rule, rows[:, :trainable])]
        if trainable < rows.shape[1]:
            # Who is near was not asked of them, and vouches for none; not sparse, they can be trimmed as they are.
            parts.append(self._judged(job, "mean" if job.rule == "mean" else "trimmed", rows[:, trainable:]))
        movement = self._terms(job.chunk, np.concatenate(parts), 1.0, weight)
        for compressor, payload in job.leads:
            self._lead(job.chunk, self._decode(job.chunk, compressor, payload), back=True)
        added = self._move(job.chunk, movement, math.inf)
        return jobs.EpochApplied(tuple(counted.tolist()), movement.length, added)

    def _judged(self, job: jobs.ApplyEpoch, rule: str, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """What `rule` makes of rows that were measured."""
        return robust.plan(robust.RULES[rule], self._distances, job.weights, self._bad).combine(rows)

    def _lead(self, chunk: int, sent: Vector, *, back: bool = False) -> None:
        alone = self._terms(chunk, sent, 1.0, 1.0)
        self.ledger.add_lead(chunk, alone.where, alone.terms if back else -alone.terms)
        if not back:
            self._moved[chunk] += alone.length

    def _rows(self, job: jobs.MeasureEpoch | jobs.ApplyEpoch) -> tuple[NDArray[np.float32], list[_Increment | None]]:
        """What each contributor would move the chunk by at weight 1, a row each, and each term's own movement; None of
        what is not to be taken."""
        span = self.ledger.span(job.chunk)
        rows = np.zeros((len(job.weights), span.stop - span.start), np.float32)
        increments: list[_Increment | None] = []
        for term in job.terms:
            increment = self._increment(job.chunk, term.compressor, term.payload, term.lr, term.weight)
            increments.append(increment)
            if increment is not None and job.weights[term.row] > 0.0:
                # Of the terms, for their length is what was cut: what they leave out must not come back by a division.
                share = term.scale / job.weights[term.row] / SCALE
                with np.errstate(over="ignore", invalid="ignore"):  # whoever has no usable weight is no finite row
                    rows[term.row, increment.where] += (increment.terms * share).astype(np.float32)
        return rows, increments

    def _move(self, chunk: int, increment: _Increment, bound: float, *, back: bool = False) -> int:
        """The fingerprint of what the anchor has moved by."""
        terms = increment.bounded(bound)
        added = terms if back else -terms
        self.ledger.add(chunk, increment.where, added)
        self._moved[chunk] += min(increment.length, bound)
        return fingerprint(self.ledger.span(chunk).start, increment.where, added)

    def _sample(self, starts: tuple[int, ...]) -> jobs.Sampled:
        chunks = self.ledger.chunks_of(starts)
        parameters = sum(span.stop - span.start for span in map(self.ledger.span, chunks))
        step = math.sqrt(float(np.sum(self._longest[chunks] ** 2)) / parameters)
        return jobs.Sampled(self.ledger.sample(starts).data.cast("B"), 0.0, step)


def _norm2(values: NDArray[np.float32]) -> float:
    return float(np.dot(values, values))
