"""`epidemic`: every peer's compressed increment reaches every peer, and identical replicas need no barrier.

    e <- beta e + D;   c = Q2(TopK(e));   e <- e - c            D as in the ledger; e is the ledger's v
    a <- a - alpha p c, once for every message, in any order    p: share of the message, fixed by its sender

This is SparseLoCo (arXiv 2508.15706) with delays. The movement of a message is rounded once, to the integers of the
ledger, and integer sums commute. Replicas that applied the same set of messages hold the same bits (see `fixed_point`).
The protocol decides which messages a peer applies, and when an epoch settles.

**Guards of a receiver** must decide the same at every peer, so they use the message and what the epoch agreed on: the
payload decodes; 0 < p <= 1 and 0 <= alpha <= 8; one parameter moves by at most 2^20; the movement alpha p c of a chunk
is scaled down to `bound`. Settled epochs give `bound` (see `protocol.epidemic.epochs`). A receiver's own e or a cannot
serve as the measure, because they differ from peer to peer.

**Guards of a sender** may use anything, because their effect is part of the message. The sender cuts its own movement
as every receiver does. The limit holds for all chunks together and is known after the last one; e <- e + kept c then
takes the rest back. A parameter that waited T rounds in e moves by up to T rounds of D at once. In fast training that
overshoots, and the next D points back. The sender therefore offers less of e to the compressor while cos(D, last c) on
the support of c is below -0.3.

**Robust rules** need all increments of an epoch, so they apply them together when the epoch has settled, some five
epochs late. An outer step that late is unstable at any useful alpha if the peer returns to the shared state meanwhile.
Its own increments therefore lead, each whole and at alpha 1, until the epoch settles (as in CO2, arXiv 2401.16265, and
DaSGD, arXiv 2006.00441).

**Buffers** (past `trainable`) are averages: alpha and beta are 1 and bfloat16 carries them whole. c is e but for the
rounding, so a_new = sum_i p_i x_i if the weights sum to 1.

**A lone peer** does not publish. Its outer step is the ledger's with lr 1 and momentum 0: a := x, e := 0, x untouched.
It is the bare optimizer bit for bit. The content of e is dropped, at most alpha p ||e|| of the mean: at weight 1 it
would release many rounds of old steps at once. Giving its state to another peer ends this, because a step outside any
message would then be missing at the receiver.

This module knows chunks and jobs, not peers or messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.algorithm import Algorithm
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
from gossipdp.algorithms.ledger import Keep, decayed_maximum, in_memory
from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.whole import WHOLE
from gossipdp.protocol import jobs

__all__ = ["MOST_LR", "Epidemic"]

MOST_LR: Final = 8.0
"""largest alpha. Useful values are 1 to 4; runs diverge somewhat above that"""
OVERSHOT: Final = -0.3
"""cos(D, last c) below which only an overshoot is plausible; noisy progress alone gives -0.1 to -0.2"""
DEVIATIONS: Final = 2.0
"""further margin below OVERSHOT, in standard deviations of the cosine, 1 / sqrt(parameters)"""
RETREAT: Final = 0.7
ADVANCE: Final = 1.1
"""factors of a round on the share of e that is offered, which stays between `LEAST_SHARE` and 1"""
LEAST_SHARE: Final = 1e-3
MOST_MOVED: Final = 2.0**20
"""largest movement of one parameter by one message"""
SAFE: Final = 0.98
"""share of the limit that a sender aims at when it cuts, because levels are rounded to 2^-9"""
DENSE: Final = 0.25
"""share of a chunk's parameters above which it is moved as a whole"""


class _Increment:
    """alpha p c of one chunk as integers: `terms` at `where`."""

    def __init__(self, where: Where, terms: Integers) -> None:
        self.where, self.terms, self.length = where, terms, magnitude(terms)

    def bounded(self, bound: float) -> Integers:
        """The terms, scaled down where they are longer than `bound`."""
        if not self.length > bound:
            return self.terms
        # Towards zero, so that rounding does not lengthen the cut movement.
        cut: Integers = np.trunc(self.terms * (bound / self.length)).astype(np.int64)
        return cut


class Epidemic(Algorithm):
    """The vectors of one peer, and the jobs on them.

    Args:
        compressors: by name, those that a job may use.
        bad: share of bad contributors that robust rules tolerate.
        keep: see `Algorithm`.
    """

    ledger: FixedLedger

    def __init__(
        self,
        *,
        compressors: Mapping[str, Compressor] = COMPRESSORS,
        bad: float = robust.SHARE,
        keep: Keep = in_memory,
    ) -> None:
        super().__init__(keep)
        self._compressors, self._bad = compressors, bad

    def _execute(self, job: jobs.Job[object]) -> object:
        match job:
            case jobs.Publish():
                return self._publish(job)
            case jobs.Apply():
                return self._apply(job)
            case jobs.CheckIncrement(chunk, compressor, payload, lr, weight):
                increment = self._increment(chunk, compressor, payload, lr, weight)
                return jobs.Inspected(increment is not None, 0.0 if increment is None else increment.length)
            case jobs.MeasureEpoch():
                return self._measure(job)
            case jobs.ApplyEpoch():
                return self._apply_epoch(job)
            case jobs.Fingerprint(chunk):
                return jobs.Fingerprinted(self.ledger.fingerprint(chunk))
        return super()._execute(job)

    def allocate(self, size: int, trainable: int, chunk_parameters: int) -> None:
        """Make room for a model and drop the one before. Arguments as of `FixedLedger`."""
        self.ledger = FixedLedger(size, trainable, chunk_parameters, self._keep)
        self._measured, self._distances = 0, robust.Distances(0)
        """chunks measured, and distances, of the epoch under way"""
        self._share: NDArray[np.float64] = np.ones(self.ledger.chunks)
        """by chunk, the share of e that the compressor is offered"""
        self._last: dict[int, tuple[str, Buffer]] = {}
        """by chunk, compressor and payload of the last own message"""
        self._longest: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """by chunk, length of the longest recent step"""
        self._moved: NDArray[np.float64] = np.zeros(self.ledger.chunks)
        """by chunk, sum of the movements since the last own message"""

    def most_bytes(self, chunk: int, compressor: str) -> int:
        """The longest payload that this chunk accepts."""
        trainable, buffers = self._parts(chunk)
        head = self._compressors[compressor].most_bytes(trainable) if trainable else 0
        return head + WHOLE.most_bytes(buffers)

    # -- payloads ---------------------------------------------------------------------------------------------

    def _parts(self, chunk: int) -> tuple[int, int]:
        """Numbers of trainable parameters and of buffer elements in the chunk."""
        span = self.ledger.span(chunk)
        trainable = min(max(self.ledger.trainable - span.start, 0), span.stop - span.start)
        return trainable, span.stop - span.start - trainable

    def _encode(self, chunk: int, compressor: str, values: Vector, seed: int) -> Buffer:
        trainable, buffers = self._parts(chunk)
        head = self._compressors[compressor].encode(values[:trainable], seed=seed) if trainable else b""
        return head if not buffers else b"".join((head, WHOLE.encode(values[trainable:], seed=seed)))

    def _decode(self, chunk: int, compressor: str, payload: Buffer) -> Vector:
        """c of a payload, the same at every peer. Raises PayloadError."""
        trainable, buffers = self._parts(chunk)
        data = memoryview(payload).cast("B")
        if not 2 * buffers <= data.nbytes <= self.most_bytes(chunk, compressor):
            raise PayloadError(f"{data.nbytes} bytes, at most {self.most_bytes(chunk, compressor)} allowed")
        split = data.nbytes - WHOLE.most_bytes(buffers)
        if not trainable:
            return WHOLE.decode(data, buffers)
        values = self._compressors[compressor].decode(data[:split], trainable)
        return values if not buffers else np.concatenate([values, WHOLE.decode(data[split:], buffers)])

    def _movement(self, chunk: int, values: Vector | NDArray[np.float64], lr: float, weight: float) -> _Increment:
        """alpha p c as integers; alpha is 1 for buffers."""
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
        """The movement of this chunk by a message. None if the payload, lr or weight is not allowed."""
        if not (0.0 <= lr <= MOST_LR and 0.0 < weight <= 1.0):
            return None
        try:
            values = self._decode(chunk, compressor, payload)
        except PayloadError:
            return None
        return self._movement(chunk, values, lr, weight)

    # -- steps ------------------------------------------------------------------------------------------------

    def _outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> jobs.Stepped:
        if lr != 1.0 or momentum != 0.0:
            raise ValueError(f"lr {lr}, momentum {momentum}: a lone peer steps with lr 1 and momentum 0")
        step = self.ledger.outer_step(chunk, lr, momentum, applied)
        self._forget(chunk)
        self._longest[chunk] = decayed_maximum(self._longest[chunk], math.sqrt(step.movement2))
        return jobs.Stepped(step.pseudo_gradient2, step.movement2)

    def _adopted(self, chunk: int, taken: bool) -> jobs.Checked:
        if taken:
            self._forget(chunk)
        return jobs.Checked(taken)

    def _forget(self, chunk: int) -> None:
        """Forget the last own message: the anchor did not come from it."""
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
        increment = self._movement(chunk, sent, lr, weight)
        if increment.length > job.bound:
            within = SAFE * job.bound / increment.length
            share *= within
            payload = self._encode(chunk, job.compressor, offered * np.float32(within), job.seed)
            sent = self._decode(chunk, job.compressor, payload)
            increment = self._movement(chunk, sent, lr, weight)
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
        self._longest[chunk] = decayed_maximum(self._longest[chunk], self._moved[chunk])
        self._moved[chunk] = 0.0
        return jobs.Published(payload, increment.length, d2, share, added)

    def _apply(self, job: jobs.Apply) -> jobs.Inspected:
        chunk, increment = job.chunk, self._increment(job.chunk, job.compressor, job.payload, job.lr, job.weight)
        if increment is None:
            return jobs.Inspected(False)
        added = self._move(chunk, increment, job.bound, back=job.back)
        if job.kept:
            # Only parameters: the next D of a buffer contains all that the cut left out, because buffers are averages.
            trainable, c = self._parts(chunk)[0], self._decode(chunk, job.compressor, job.payload)
            self.ledger.v[self.ledger.span(chunk)][:trainable] += np.float32(job.kept) * c[:trainable]
        return jobs.Inspected(True, increment.length, added)

    def _offered_share(self, chunk: int, d: Vector) -> float:
        """The share of e to offer, after comparing D with the last c."""
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
            raise ValueError(f"chunk {job.chunk} of an epoch with {self._measured} chunks measured")
        rows, increments = self._rows(job)
        # Buffers have other units, and their distances would dominate.
        self._distances.add(rows[:, : self._parts(job.chunk)[0]])
        for term, increment in zip(job.terms, increments, strict=True):
            if increment is None:
                self._distances.exclude(term.row)
        self._measured += 1
        movements = tuple(0.0 if increment is None else increment.length for increment in increments)
        return jobs.Measured(tuple(increment is not None for increment in increments), movements)

    def _apply_epoch(self, job: jobs.ApplyEpoch) -> jobs.EpochApplied:
        if self._measured != self.ledger.chunks or len(job.weights) != len(self._distances.finite):
            raise ValueError(f"{self._measured} chunks measured for {len(self._distances.finite)} contributors")
        rows, _ = self._rows(job)
        counted = self._distances.finite & (np.array(job.weights) > 0.0)
        # The rule gives a mean, which counts by the contributors' total weight: an epoch of few counts as a share.
        weight = robust.total_weight(np.array(job.weights)[counted].tolist())
        trainable = self._parts(job.chunk)[0]
        parts = [self._aggregate(job, job.rule, rows[:, :trainable])]
        if trainable < rows.shape[1]:
            # The measured distances say nothing about buffers. Buffers are dense, so they are trimmed unmixed.
            parts.append(self._aggregate(job, "mean" if job.rule == "mean" else "trimmed", rows[:, trainable:]))
        movement = self._movement(job.chunk, np.concatenate(parts), 1.0, weight)
        for compressor, payload in job.leads:
            self._lead(job.chunk, self._decode(job.chunk, compressor, payload), back=True)
        added = self._move(job.chunk, movement, math.inf)
        return jobs.EpochApplied(tuple(counted.tolist()), movement.length, added)

    def _aggregate(self, job: jobs.ApplyEpoch, rule: str, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """The aggregate of `rule` over measured rows, shape (contributors, d)."""
        return robust.plan(robust.RULES[rule], self._distances, job.weights, self._bad).combine(rows)

    def _lead(self, chunk: int, sent: Vector, *, back: bool = False) -> None:
        """Add an own increment to the lead at alpha 1 and weight 1, or with `back` take it out again."""
        alone = self._movement(chunk, sent, 1.0, 1.0)
        self.ledger.add_lead(chunk, alone.where, alone.terms if back else -alone.terms)
        if not back:
            self._moved[chunk] += alone.length

    def _rows(self, job: jobs.MeasureEpoch | jobs.ApplyEpoch) -> tuple[NDArray[np.float32], list[_Increment | None]]:
        """Each contributor's movement of the chunk at weight 1, one row each, and the movement of each term.

        A term that is not allowed has the movement None.
        """
        span = self.ledger.span(job.chunk)
        rows = np.zeros((len(job.weights), span.stop - span.start), np.float32)
        increments: list[_Increment | None] = []
        for term in job.terms:
            increment = self._increment(job.chunk, term.compressor, term.payload, term.lr, term.weight)
            increments.append(increment)
            if increment is not None and job.weights[term.row] > 0.0:
                # The rounded terms are divided, not c: the cut applies to their length.
                share = term.scale / job.weights[term.row] / SCALE
                # A weight that is not usable gives a row that is not finite.
                with np.errstate(over="ignore", invalid="ignore"):
                    rows[term.row, increment.where] += (increment.terms * share).astype(np.float32)
        return rows, increments

    def _move(self, chunk: int, increment: _Increment, bound: float, *, back: bool = False) -> int:
        """Move the anchor, and return the fingerprint of the movement."""
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
