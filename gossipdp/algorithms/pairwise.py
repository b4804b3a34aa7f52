"""`pairwise`: a local Nesterov outer step, then a compressed average of the anchors with one random partner.

What travels is the difference of two anchors, that is, of sums of compressed local updates. Mixing is
antisymmetric, so the mean of all anchors moves only by outer steps, exactly (algorithms section 3):

    mean(a)' = mean(a) - alpha (mean D + mu mean v)

Pair averaging follows AD-PSGD (Lian et al. 2018) and SwarmSGD (Nadiradze et al. 2021), the outer step DiLoCo (arXiv
2311.08105) without its all-reduce, the encoding Moniqua (Lu & De Sa 2020, arXiv 2002.11787), the clipping
ClippedGossip (He et al. 2022, arXiv 2202.01545). Both sides of a chunk know the share of the difference that clipping
leaves: where it is less than all, neither pulls at its momentum, so that the sum of v is as exact as that of a.

The bound tau follows what this peer does itself, a slow one in its short rounds as if they were usual ones: others go
further meanwhile than it does, and it is to come along. The exchanges of a round share it, and all that are made
between two of its steps move it by no more than `MOST_A_ROUND` times. No partner's distance widens it, nor that of most
partners: liars who push honest peers apart make them far from one another in truth, so a bound that opened for them
would open for liars. Before its first own step the anchor's own length is the measure, the one scale that no partner
sets. Halves of a network that trained apart come together all the same, by up to tau at each exchange, in a few times
as many rounds as they were apart. This module knows chunks and jobs, not peers or messages.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import Ledger, OnLedger, block_max, longest_of_late
from gossipdp.codecs import CODECS
from gossipdp.codecs.base import BLOCK, Buffer, ChunkCodec, PayloadError
from gossipdp.protocol import jobs

__all__ = ["Pairwise"]

RANGE_SHARE = 0.6
RANGE_DECAY = 0.8
"""r_b <- max(0.6 |delta|_inf, 0.8 r_b) after each exchange of block b"""
NORM_DECAY = 0.7
"""of the EMA of ||delta_c|| behind the clipping bound"""
HEADROOM = 2.0
"""the EMA learns so many times the distance: partners are not all as near as the mean, and an estimate that only falls
would come to clip those who are not"""
CLIP_FACTOR = 1.5
"""tau_c = 1.5 max(EMA ||delta_c||, sqrt2 ||own outer step on c||) / k, at the k-th exchange of c since that step"""
MOST_SHARED = 3
"""the largest k: so many exchanges a round are made while the learning rate is high, and peers are then the nearer to
each other at each"""
MOST_A_ROUND = 8.0
"""tau, so many times, is what all exchanges between two outer steps may bring of differences. Who is met often is met
by those who are faster, and needs about as many of its own steps as they make in one; who says nothing but lies could
otherwise say as many as it likes"""
NORM_SHARE = 2.0**-3
"""of ||a_c||: the usual distance where no own step has moved anything yet, and no exchange"""
APART = 4.0
"""what is further away than so many times the usual counts for no more when a witness tells how far others are"""
SHARE_TOLERANCE = 1.001
"""two hosts may sum ||delta||^2 in another order"""
JOIN_RANGE = 2.0**-7
"""first range of a joiner relative to |a|_inf: twice the rounding of bfloat16, and then some movement"""


@dataclass(slots=True)
class _Opened:
    """One open chunk: `told` is the bound the partner was told, `moved` what the ranges it was told allowed for."""

    side: ChunkCodec
    moved: NDArray[np.float32]
    told: float = math.inf


class Pairwise(OnLedger):
    """The vectors of one peer and the jobs on them.

    Args:
        clip: factor of the clipping bound; infinity switches clipping off.
    """

    ledger: Ledger

    def __init__(self, *, clip: float = CLIP_FACTOR) -> None:
        self.clip = clip
        self._open: dict[jobs.ChunkKey, _Opened] = {}

    def run(self, job: jobs.Job) -> jobs.Result:
        match job:
            case jobs.Begin(key, codec, lower):
                return self._begin(key, codec, lower)
            case jobs.Answer(key, codec, lower, ranges):
                return self._answer(key, codec, lower, ranges)
            case jobs.Decode(key, buffers, first):
                return self._decode(key, buffers, first)
            case jobs.DecodeAndMix():
                return self._decode_and_mix(job)
            case jobs.Mix():
                return self._mix_acknowledged(job)
            case jobs.Drop(keys):
                for key in keys:
                    self._open.pop(key, None)
                return None
            case jobs.OuterStep(chunk, part=part):
                stepped = super().run(job)
                # By its own short rounds a slow host would let in too little of what the others do meanwhile.
                self._step[chunk] /= part
                self._longest[chunk] = longest_of_late(self._longest[chunk], self._step[chunk])
                return stepped
            case jobs.Renew():
                self._mixed[:], self._brought[:] = 0, 0.0
                return None
            case jobs.Conclude(chunk, back):
                self.ledger.conclude(chunk, back=back)
                self._taken(chunk, back)
                return None
        return super().run(job)

    def allocate(self, size: int, trainable: int, chunk_parameters: int) -> None:
        """Make room for a model; what was held before is gone."""
        self.ledger = Ledger(size, trainable, chunk_parameters)
        self._open.clear()
        blocks = -(-size // BLOCK)
        self.range: NDArray[np.float32] = np.zeros(blocks, np.float32)
        self.moved: NDArray[np.float32] = np.zeros(blocks, np.float32)
        self._distance: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """EMA of ||delta_c||, of which no more counts than the bound allows for"""
        self._apart: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """how far others are, for who has to judge a state: the same, of which more counts, and never below the last"""
        self._step: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        self._longest: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """what others may have moved by in a round of late, for who has to judge a state that is old"""
        self._mixed: NDArray[np.int64] = np.zeros(self.ledger.chunks, np.int64)
        """exchanges since the last outer step"""
        self._brought: NDArray[np.float64] = np.zeros(self.ledger.chunks)
        """sum of ||k delta_c|| since then"""

    # -- ranges and bounds ------------------------------------------------------------------------------------

    def _blocks(self, chunk: int) -> slice:
        span = self.ledger.span(chunk)
        return slice(span.start // BLOCK, -(-span.stop // BLOCK))

    def _usual(self, chunk: int) -> float:
        """max(EMA ||delta_c||, sqrt2 ||own outer step||), or before there is either a share of ||a_c||."""
        # NaN is unknown; so is 0, past which nothing could ever grow again.
        known = [float(n) for n in (self._distance[chunk], math.sqrt(2.0) * self._step[chunk]) if 0.0 < n < math.inf]
        return max(known) if known else NORM_SHARE * math.sqrt(_norm2(self.ledger.a[self.ledger.span(chunk)]))

    def _bound(self, chunk: int) -> float:
        """tau_c."""
        if math.isinf(self.clip):
            return math.inf
        tau = self.clip * self._usual(chunk)
        left = MOST_A_ROUND * tau - float(self._brought[chunk])
        return max(0.0, min(tau / min(MOST_SHARED, 1 + int(self._mixed[chunk])), left))

    def _outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> jobs.Stepped:
        pseudo_gradient, movement = self.ledger.outer_step(chunk, lr, momentum, applied)
        self.moved[self._blocks(chunk)] += block_max(movement)
        movement2 = _norm2(movement)
        self._step[chunk], self._mixed[chunk], self._brought[chunk] = math.sqrt(movement2), 0, 0.0
        return jobs.Stepped(_norm2(pseudo_gradient), movement2)

    def _taken(self, chunk: int, taken: bool) -> jobs.Checked:
        if taken:
            self._mixed[chunk], self._brought[chunk] = 0, 0.0
            self._longest[chunk] = self._step[chunk]
            blocks = self._blocks(chunk)
            self.range[blocks] = JOIN_RANGE * block_max(self.ledger.a[self.ledger.span(chunk)])
            self.moved[blocks] = 0.0
        return jobs.Checked(taken)

    def _sample(self, starts: tuple[int, ...]) -> jobs.Sampled:
        chunks = self.ledger.chunks_of(starts)
        spans = [self.ledger.span(chunk) for chunk in chunks]
        parameters = sum(span.stop - span.start for span in spans)
        distance, step = (
            math.sqrt(float(np.sum(known[chunks] ** 2)) / parameters)
            for known in (np.fmax(self._distance, self._apart), self._longest)
        )
        return jobs.Sampled(self.ledger.sample(starts).data.cast("B"), distance, step)

    # -- the exchange -----------------------------------------------------------------------------------------

    def _codec(self, key: jobs.ChunkKey, codec: str, lower: bool) -> ChunkCodec:
        span, blocks = self.ledger.span(key.chunk), self._blocks(key.chunk)
        # Both sides round with the same stream: the error of the difference stays below one step, not two.
        name = b"%s%d,%d" % (key.initiator, key.exchange, key.chunk)
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
        moved = self.moved[blocks].copy()
        predicted = self.range[blocks] + moved
        side = CODECS[codec].chunk(self.ledger.a[span], predicted, lower=lower, seed=seed)
        self._open[key] = _Opened(side, moved)
        return side

    def _begin(self, key: jobs.ChunkKey, codec: str, lower: bool) -> jobs.Turn:
        return jobs.Turn(tuple(self._codec(key, codec, lower).ranges()))

    def _answer(self, key: jobs.ChunkKey, codec: str, lower: bool, ranges: Buffer) -> jobs.Turn:
        side = self._codec(key, codec, lower)
        own = side.ranges()
        try:
            side.open(ranges)
        except PayloadError:
            return self._refuse(key, "payload")
        return jobs.Turn((*own, *side.emit()), bound=self._bound(key.chunk))

    def _decode(self, key: jobs.ChunkKey, buffers: tuple[Buffer, ...], first: bool) -> jobs.Turn:
        opened = self._open[key]
        side = opened.side
        try:
            if first:
                side.open(buffers[0])
            side.absorb(buffers[1:] if first else buffers)
        except PayloadError:
            return self._refuse(key, "payload")
        # This very bound holds when the acknowledgement comes, whatever has been learned by then.
        opened.told = self._bound(key.chunk)
        return jobs.Turn(tuple(side.emit()), side.complete, bound=opened.told)

    def _decode_and_mix(self, job: jobs.DecodeAndMix) -> jobs.Turn:
        side = self._open[job.key].side
        try:
            side.absorb(job.buffers)
        except PayloadError:
            return self._refuse(job.key, "payload")
        if not side.complete:
            return jobs.Turn(tuple(side.emit()), bound=self._bound(job.key.chunk))
        norm2 = side.norm2()
        share = _share(min(job.bound, self._bound(job.key.chunk)), norm2)
        return self._mix(job.key, self._open[job.key], share, norm2, job)

    def _mix_acknowledged(self, job: jobs.Mix) -> jobs.Turn:
        opened = self._open[job.key]
        side = opened.side
        try:
            if job.buffers:
                side.absorb(job.buffers)
        except PayloadError:
            return self._refuse(job.key, "payload")
        if not side.complete:
            return self._refuse(job.key, "payload")
        norm2 = side.norm2()
        if math.isfinite(norm2) and job.share > _share(opened.told, norm2) * SHARE_TOLERANCE:
            return self._refuse(job.key, "share")
        return self._mix(job.key, opened, job.share, norm2, job)

    def _mix(
        self, key: jobs.ChunkKey, opened: _Opened, share: float, norm2: float, job: jobs.Mix | jobs.DecodeAndMix
    ) -> jobs.Turn:
        ledger, chunk, span, blocks = self.ledger, key.chunk, self.ledger.span(key.chunk), self._blocks(key.chunk)
        side = opened.side
        if not math.isfinite(norm2):
            return self._refuse(key, "nan")
        buffers = tuple(side.emit())
        # A liar's pull at v would make the next outer step longer, and by that the bound wider that lets the liar in.
        momentum = ledger.v[span] if job.pull and share >= 1.0 else None
        largest = side.mix(job.weight * share, ledger.a[span], ledger.pending(chunk), momentum, job.pull)
        self.range[blocks] = np.maximum(RANGE_SHARE * largest, RANGE_DECAY * self.range[blocks])
        # An outer step taken meanwhile is not in delta: the next exchange has still to allow for it.
        self.moved[blocks] = np.maximum(self.moved[blocks] - opened.moved, 0.0)
        self._remember(chunk, math.sqrt(norm2), share)
        del self._open[key]
        if ledger.averaged(chunk):
            return jobs.Turn(buffers, True, True, share, escalation_bytes=side.escalation_bytes)
        return jobs.Turn(
            buffers,
            True,
            True,
            share,
            distance2=norm2,
            blocks=side.blocks,
            escalated=side.escalated,
            escalation_bytes=side.escalation_bytes,
        )

    def _remember(self, chunk: int, distance: float, share: float) -> None:
        # Whoever lies is as far away as it is let: a bound that learned itself would grow by a partner's word.
        usual = self._usual(chunk)
        self._mixed[chunk] += share > 0.0
        self._brought[chunk] += share * distance
        self._distance[chunk] = _follow(self._distance[chunk], min(HEADROOM * distance, usual))
        # It rises at once: a witness should not call implausible what it has just seen.
        apart = min(distance, APART * usual)
        self._apart[chunk] = max(apart, _follow(self._apart[chunk], apart))

    def _refuse(self, key: jobs.ChunkKey, reason: str) -> jobs.Turn:
        self._open.pop(key, None)
        return jobs.Turn(refused=reason)


def _share(bound: float, norm2: float) -> float:
    """k = min(1, tau / ||delta||)."""
    norm = math.sqrt(norm2)
    return 1.0 if norm <= bound else bound / norm


def _follow(known: float, seen: float) -> float:
    """EMA; NaN is unknown."""
    return seen if math.isnan(known) else NORM_DECAY * known + (1.0 - NORM_DECAY) * seen


def _norm2(values: NDArray[np.float32]) -> float:
    with np.errstate(over="ignore"):
        return float(np.dot(values, values))
