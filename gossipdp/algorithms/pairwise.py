"""`pairwise`: a local Nesterov outer step, then a compressed average of the anchors with one random partner.

The two peers exchange the difference of their anchors. Mixing is antisymmetric, so the mean of all anchors moves by
outer steps alone (algorithms section 3):

    mean(a)' = mean(a) - alpha (mean D + mu mean v)

Sources: AD-PSGD (Lian et al. 2018) and SwarmSGD (Nadiradze et al. 2021) for pair averaging; DiLoCo (arXiv 2311.08105)
for the outer step; Moniqua (Lu & De Sa 2020, arXiv 2002.11787) for the encoding; ClippedGossip (He et al. 2022, arXiv
2202.01545) for the clipping.

The clipping bound tau follows this peer's own steps, scaled to a usual round. No partner's distance widens it: liars
that push honest peers apart would otherwise widen it for themselves. Before the first own step the anchor's norm sets
the scale. The exchanges of a round share tau, and all exchanges between two own steps move the anchor by at most
`MOST_A_ROUND` tau. Halves of a network that trained apart still come together, by up to tau at each exchange.

Both sides know which share of a difference the clipping leaves. Where it is below 1 neither side pulls at its momentum,
so the sum of v is as exact as the sum of a. This module knows chunks and jobs, not peers or messages.

Jobs on one chunk run in order. Several threads may run jobs on different chunks at once. A job that names no chunk, or
shares state with other chunks, runs alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import FADING, Keep, Ledger, block_max, decayed_maximum, in_memory, squared, state_hash
from gossipdp.codecs import CODECS, moments
from gossipdp.codecs.base import ChunkCodec, PayloadError
from gossipdp.codecs.blocks import Blocks
from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault

__all__ = ["Pairwise"]

Result = TypeVar("Result")

RANGE_SHARE = 0.6
RANGE_DECAY = 0.8
"""r_b <- max(0.6 |delta|_inf, 0.8 r_b) after each exchange of block b"""
NORM_DECAY = 0.7
"""decay of the EMA of ||delta_c|| that the clipping bound uses"""
HEADROOM = 2.0
"""factor on a distance before it enters the EMA: some partners are further away than the mean, and an EMA without
headroom would come to clip them"""
MOST_SHARED = 3
"""largest k. Peers make up to this many exchanges a round while the learning rate is high, and come closer at each"""
MOST_A_ROUND = 8.0
"""largest sum of differences that all exchanges between two outer steps may bring, in units of tau. A slow peer needs
several tau, because faster peers meet it often. The limit stops a partner that lies in every exchange"""
PLAUSIBLE = 32.0
"""usual distances that may lie between two replicas in the closing, at least"""
ROUNDING = 2.0**-23
"""difference in the closing that counts as none, relative to the model: two roundings of fp32, as where training has
converged and the usual distance is smaller still"""
FINER = 2.0**-4
"""share of the range that the closing predicts: movements of many rounds cancel, and a longer difference escalates by
four bits"""
NORM_SHARE = 2.0**-3
"""usual distance as a share of ||a_c||, before the first own step and exchange"""
APART = 4.0
"""cap of one distance in a witness's estimate, in units of the usual distance"""
COARSE = 64.0
"""step of a chunk's grid, in usual distances, beyond which a difference of 0 says nothing. Grids that a partner's range
does not coarsen stay below it: the clipping bound limits what ranges learn"""
SHARE_TOLERANCE = 1.001
"""relative tolerance on the share: two hosts may sum ||delta||^2 in different orders"""
FEW_BUFFERS = 0.01
"""share of the model up to which buffers are exchanged in fp32. They differ by decades within a tensor, so they have no
common range; larger ones take 16 bits, relative to each element"""
JOIN_RANGE = 2.0**-7
"""first range of a joiner relative to |a|_inf: twice the rounding of bfloat16, plus some movement"""


@dataclass(slots=True)
class _Opened:
    """One open chunk of an exchange."""

    side: ChunkCodec
    moved: NDArray[np.float32]
    """own movement that the announced ranges allowed for, shape (blocks,)"""
    within: bool
    """the side's blocks are the ledger's"""
    told: float = math.inf
    """the bound that was announced to the partner"""


class Pairwise:
    """The vectors of one peer, and the jobs on them.

    Args:
        clip: factor of the bound tau_c = clip max(EMA ||delta_c||, sqrt2 ||own outer step on c||) / k, at the k-th
            exchange of c since that step. Infinity switches clipping off.
        keep: called with what stays for longer than a job: copies for joiners, moments, what undoes a re-sync.
    """

    ledger: Ledger

    def __init__(self, *, clip: float, keep: Keep = in_memory) -> None:
        self.clip, self._keep = clip, keep
        self._open: dict[jobs.ChunkKey, _Opened] = {}
        self._widened: float | None = None
        """during the closing: share of the last Widen"""

    def run(self, job: jobs.Job[Result]) -> Result:
        """Run one job.

        Returns:
            What the job's class names. A fault of the partner is part of the result.

        Raises:
            TypeError: no such job.
        """
        return job.typed(self._execute(job))

    def _execute(self, job: jobs.Job[object]) -> object:
        match job:
            case jobs.Begin():
                return jobs.Turn(tuple(self._codec(job.key, job.coding).ranges()))
            case jobs.Answer():
                return self._answer(job)
            case jobs.Decode():
                return self._decode(job)
            case jobs.DecodeAndMix():
                return self._decode_and_mix(job)
            case jobs.Mix():
                return self._mix_acknowledged(job)
            case jobs.Drop(keys):
                for key in keys:
                    self._open.pop(key, None)
                return None
            case jobs.OuterStep():
                return self._outer_step(job)
            case jobs.Rest(chunk):
                self.moved[self._blocks(chunk)] += self.ledger.rest(chunk)
                return None
            case jobs.Renew():
                self._mixed[:], self._brought[:] = 0, 0.0
                return None
            case jobs.Widen(share):
                self._widened = share
                return None
            case jobs.Sample(starts):
                return self._sample(starts)
            case jobs.Adopt(chunk, payload, digest):
                return self._adopted(chunk, self.ledger.adopt(chunk, payload, digest))
            case jobs.Resync(chunk, payload, digest):
                return self._adopted(chunk, self.ledger.resync(chunk, payload, digest))
            case jobs.Conclude(chunk, back):
                self.ledger.conclude(chunk, back=back)
                self._adopted(chunk, back)
                return None
            case jobs.Allocate(size, trainable, chunk_parameters, tensors):
                self.allocate(size, trainable, chunk_parameters, tensors)
                return None
        return self._of_ledger(job)

    def _of_ledger(self, job: jobs.Job[object]) -> object:
        """Run a job that needs nothing but the ledger."""
        match job:
            case jobs.Check(chunk):
                return jobs.Checked(self.ledger.check(chunk))
            case jobs.Seal():
                return self.ledger.seal()
            case jobs.Release(slot):
                self.ledger.release(slot)
                return None
            case jobs.Found(chunk):
                return jobs.Checked(self.ledger.found(chunk))
            case jobs.Attach(chunk):
                return self.ledger.attach(chunk)
            case jobs.Freeze(chunk):
                return self.ledger.freeze(chunk)
            case jobs.HashPiece(_, payload):
                return jobs.Frozen(payload, state_hash(payload))
            case jobs.CheckPiece(_, payload, digest):
                return jobs.Checked(state_hash(payload) == digest)
            case jobs.Compare():
                return self.ledger.compare(job)
            case jobs.CheckMoments(_, size, payload, digest):
                sound = moments.digest(payload) == digest and moments.check(payload, size)
                return jobs.Frozen(self._keep(payload), digest) if sound else None
        raise TypeError(f"no such job: {job!r}")

    def allocate(self, size: int, trainable: int, chunk_parameters: int, tensors: Sequence[int] = ()) -> None:
        """Make room for a model and drop the one before. Arguments as of `Ledger`."""
        self.ledger = Ledger(size, trainable, chunk_parameters, self._keep, tensors)
        self._open.clear()
        ends = list(accumulate((len(each) for each in self.ledger.blocks), initial=0))
        self._places = [slice(*pair) for pair in pairwise(ends)]
        """of each chunk's blocks among those of the model"""
        blocks = ends[-1]
        self.range: NDArray[np.float32] = np.zeros(blocks, np.float32)
        """r_b, the learnt range of each block"""
        self.moved: NDArray[np.float32] = np.zeros(blocks, np.float32)
        """largest own movement of each block since its last exchange"""
        self._distance: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """EMA of ||delta_c|| for the bound; one exchange teaches at most the usual distance"""
        self._apart: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """estimate of ||delta_c|| for witnesses: one exchange teaches up to APART usual distances; it rises at once"""
        self._step: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """length of the last own outer step, scaled to a usual round"""
        self._longest: NDArray[np.float64] = np.full(self.ledger.chunks, np.nan)
        """length of the longest recent step, for witnesses of an older state"""
        self._path: NDArray[np.float64] = np.zeros(self.ledger.chunks)
        """length of the path of the own steps. Earlier steps fade in each round that mixes something"""
        self._mixed: NDArray[np.int64] = np.zeros(self.ledger.chunks, np.int64)
        """exchanges since the last outer step"""
        self._brought: NDArray[np.float64] = np.zeros(self.ledger.chunks)
        """sum of ||k delta_c|| since the last outer step"""
        self._widened = None

    # -- ranges and bounds ------------------------------------------------------------------------------------

    def _blocks(self, chunk: int) -> slice:
        return self._places[chunk]

    def _usual(self, chunk: int) -> float:
        """max(EMA ||delta_c||, sqrt2 ||own outer step||), or NORM_SHARE ||a_c|| before either is known."""
        # NaN means unknown. 0 counts as unknown too, because an estimate of 0 could never grow again.
        known = [float(n) for n in (self._distance[chunk], math.sqrt(2.0) * self._step[chunk]) if 0.0 < n < math.inf]
        return max(known) if known else NORM_SHARE * math.sqrt(squared(self.ledger.a[self.ledger.span(chunk)]))

    def _bound(self, chunk: int) -> float:
        """The clipping bound tau_c, the longest difference of this chunk to be mixed whole."""
        if math.isinf(self.clip):
            return math.inf
        if self._widened is not None:
            return max(self._widened * self._plausible(chunk), self._rounding(chunk))
        tau = self.clip * self._usual(chunk)
        left = MOST_A_ROUND * tau - float(self._brought[chunk])
        return max(0.0, min(tau / min(MOST_SHARED, 1 + int(self._mixed[chunk])), left))

    def _plausible(self, chunk: int) -> float:
        """The longest difference of this chunk that the closing mixes (algorithms section 12)."""
        # Two replicas that were one are no further apart than both their paths are long.
        apart = 2.0 * float(self._path[chunk])
        if math.isnan(self._longest[chunk]):
            # Without a step of its own a peer does not know how far the others get. Its model is a copy.
            apart = PLAUSIBLE * NORM_SHARE * math.sqrt(squared(self.ledger.a[self.ledger.span(chunk)]))
        return max(PLAUSIBLE * self._usual(chunk), apart)

    def _rounding(self, chunk: int) -> float:
        """A difference of this chunk that the arithmetic alone may leave."""
        return ROUNDING * math.sqrt(squared(self.ledger.a[self.ledger.span(chunk)]))

    def _outer_step(self, job: jobs.OuterStep) -> jobs.Stepped:
        """Take the ledger's outer step, and learn from its length."""
        chunk = job.chunk
        step = self.ledger.outer_step(chunk, job.lr, job.momentum, job.applied, job.part, job.made)
        self.moved[self._blocks(chunk)] += step.largest
        # Scaled to a usual round: a slow host's short rounds would make the bound too narrow for its partners.
        self._step[chunk] = math.sqrt(step.movement2) / job.part
        faded = FADING if self._mixed[chunk] else 1.0
        self._path[chunk] = faded * self._path[chunk] + self._step[chunk]
        self._mixed[chunk], self._brought[chunk] = 0, 0.0
        self._longest[chunk] = decayed_maximum(self._longest[chunk], self._step[chunk])
        return jobs.Stepped(step.pseudo_gradient2, step.movement2, step.gain)

    def _adopted(self, chunk: int, taken: bool) -> jobs.Checked:
        """If `taken`, `chunk` now holds the state of another peer: forget what was learnt about the old one."""
        if taken:
            self._mixed[chunk], self._brought[chunk] = 0, 0.0
            self._longest[chunk] = self._step[chunk]
            blocks = self._blocks(chunk)
            self.range[blocks] = JOIN_RANGE * block_max(
                self.ledger.a[self.ledger.span(chunk)], self.ledger.blocks[chunk]
            )
            self.moved[blocks] = 0.0
        return jobs.Checked(taken)

    def _sample(self, starts: tuple[int, ...]) -> jobs.Sampled:
        """Values of the anchor, its usual distance to other anchors, its usual movement in a round, and sketches."""
        chunks = self.ledger.chunks_of(starts)
        spans = [self.ledger.span(chunk) for chunk in chunks]
        parameters = sum(span.stop - span.start for span in spans)
        distance, step = (
            math.sqrt(float(np.sum(known[chunks] ** 2)) / parameters)
            for known in (np.fmax(self._distance, self._apart), self._longest)
        )
        return jobs.Sampled(
            self.ledger.sample(starts).data.cast("B"), distance, step, self._sketches(starts).data.cast("B")
        )

    def _sketches(self, starts: tuple[int, ...]) -> NDArray[np.float32]:
        """Sketch, usual distance and usual movement of each chunk, RMS; shape (chunks, SUMS + 2)."""
        sizes = [span.stop - span.start for span in map(self.ledger.span, range(self.ledger.chunks))]
        sketches = self.ledger.sketches(starts, range(self.ledger.chunks))
        known = np.stack([np.fmax(self._distance, self._apart), self._longest]) / np.sqrt(sizes)
        return np.hstack([sketches, known.T]).astype("<f4")

    # -- the exchange -----------------------------------------------------------------------------------------

    def _codec(self, key: jobs.ChunkKey, coding: jobs.Coding) -> ChunkCodec:
        """Open one side of a chunk."""
        ledger, span, places = self.ledger, self.ledger.span(key.chunk), self._blocks(key.chunk)
        # Both sides round with the same random stream. The error of the difference then stays below one grid step.
        name = b"%s%d,%d" % (key.initiator, key.exchange, key.chunk)
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
        moved = self.moved[places].copy()
        predicted, blocks, codec = self.range[places] + moved, ledger.blocks[key.chunk], coding.codec
        if self._widened is not None:
            predicted *= FINER
        if not coding.within:
            blocks = Blocks.across(span.stop - span.start)
            predicted = blocks.widest(predicted, ledger.blocks[key.chunk])
        elif ledger.averaged(key.chunk):
            codec = self._of_buffers(codec)
        lower, limited = coding.lower, coding.limited
        side = CODECS[codec].chunk(ledger.a[span], predicted, blocks, lower=lower, seed=seed, limited=limited)
        self._open[key] = _Opened(side, moved, coding.within)
        return side

    def _of_buffers(self, codec: str) -> str:
        """The codec of buffers in an exchange with `codec`. It follows from what both sides know."""
        few = self.ledger.size - self.ledger.trainable <= FEW_BUFFERS * self.ledger.size
        return "fp32" if few or CODECS[codec].fineness > CODECS["bf16"].fineness else "bf16"

    def _answer(self, job: jobs.Answer) -> jobs.Turn:
        side = self._codec(job.key, job.coding)
        own = side.ranges()
        try:
            side.open(job.ranges)
        except PayloadError:
            return self._refuse(job.key, Fault.PAYLOAD)
        return jobs.Turn((*own, *side.emit()), bound=self._bound(job.key.chunk))

    def _decode(self, job: jobs.Decode) -> jobs.Turn:
        key, opened = job.key, self._open[job.key]
        side = opened.side
        try:
            if job.first:
                side.open(job.buffers[0])
            side.absorb(job.buffers[1:] if job.first else job.buffers)
        except PayloadError:
            return self._refuse(key, Fault.PAYLOAD)
        # The acknowledgement is checked against this bound, even if the estimates change meanwhile.
        opened.told = self._bound(key.chunk)
        if self._widened is not None and side.complete and _share(opened.told, side.norm2()) < 1.0:
            opened.told = 0.0
        return jobs.Turn(tuple(side.emit()), side.complete, bound=opened.told)

    def _decode_and_mix(self, job: jobs.DecodeAndMix) -> jobs.Turn:
        side = self._open[job.key].side
        try:
            side.absorb(job.buffers)
        except PayloadError:
            return self._refuse(job.key, Fault.PAYLOAD)
        if not side.complete:
            return jobs.Turn(tuple(side.emit()), bound=self._bound(job.key.chunk))
        norm2 = side.norm2()
        share = _share(min(job.bound, self._bound(job.key.chunk)), norm2)
        if self._widened is not None and _share(self._bound(job.key.chunk), norm2) < 1.0:
            share = 0.0  # a part of what is implausible is no mean of the two
        return self._mix(job.key, self._open[job.key], share, norm2, job)

    def _mix_acknowledged(self, job: jobs.Mix) -> jobs.Turn:
        opened = self._open[job.key]
        side = opened.side
        try:
            if job.buffers:
                side.absorb(job.buffers)
        except PayloadError:
            return self._refuse(job.key, Fault.PAYLOAD)
        if not side.complete:
            return self._refuse(job.key, Fault.PAYLOAD)
        norm2 = side.norm2()
        if math.isfinite(norm2) and job.share > _share(opened.told, norm2) * SHARE_TOLERANCE:
            return self._refuse(job.key, Fault.SHARE)
        return self._mix(job.key, opened, job.share, norm2, job)

    def _mix(
        self, key: jobs.ChunkKey, opened: _Opened, share: float, norm2: float, job: jobs.Mix | jobs.DecodeAndMix
    ) -> jobs.Turn:
        ledger, chunk, span, blocks = self.ledger, key.chunk, self.ledger.span(key.chunk), self._blocks(key.chunk)
        side = opened.side
        if not math.isfinite(norm2):
            return self._refuse(key, Fault.NAN)
        buffers = tuple(side.emit())
        # A clipped difference does not pull at v: a longer next step would widen the bound for a partner that lies.
        momentum = ledger.v[span] if job.mixing.pull and share >= 1.0 else None
        largest = side.mix(job.mixing.weight * share, ledger.a[span], ledger.pending(chunk), momentum, job.mixing.pull)
        if not opened.within:
            largest = block_max(_delta(side, span.stop - span.start), ledger.blocks[chunk])
        # What clipping left counts. A difference that a liar claims widens no grid.
        learnt = RANGE_SHARE * share * largest
        self.range[blocks] = np.maximum(learnt, RANGE_DECAY * self.range[blocks])
        # An outer step since the ranges were sent is not part of delta. The next exchange must still allow for it.
        self.moved[blocks] = np.maximum(self.moved[blocks] - opened.moved, 0.0)
        seen = side.step2() <= (COARSE * self._usual(chunk)) ** 2
        self._remember(chunk, math.sqrt(norm2), share, seen=seen)
        del self._open[key]
        if ledger.averaged(chunk):
            return jobs.Turn(buffers, True, True, share, escalation_bytes=side.escalation_bytes)
        return jobs.Turn(
            buffers,
            True,
            True,
            share,
            distance2=0.0 if self._widened is not None and math.sqrt(norm2) <= self._rounding(chunk) else norm2,
            seen=seen,
            blocks=side.blocks,
            escalated=side.escalated,
            escalation_bytes=side.escalation_bytes,
        )

    def _remember(self, chunk: int, distance: float, share: float, *, seen: bool) -> None:
        # The EMA learns at most `usual`: a bound that learnt from clipped distances would grow as a liar wants.
        usual = self._usual(chunk)
        self._mixed[chunk] += share > 0.0
        self._brought[chunk] += share * distance
        if not seen:
            return
        self._distance[chunk] = _follow(self._distance[chunk], min(HEADROOM * distance, usual))
        # It rises at once: a witness must not call a distance implausible that it has just seen.
        apart = min(distance, APART * usual)
        self._apart[chunk] = max(apart, _follow(self._apart[chunk], apart))

    def _refuse(self, key: jobs.ChunkKey, fault: Fault) -> jobs.Turn:
        self._open.pop(key, None)
        return jobs.Turn(refused=fault)


def _delta(side: ChunkCodec, size: int) -> NDArray[np.float32]:
    """The difference that `side` knows, shape (size,)."""
    delta, unused = np.zeros(size, np.float32), np.zeros(size, np.float32)
    side.mix(1.0, delta, unused, None, 0.0)
    return delta


def _share(bound: float, norm2: float) -> float:
    """k = min(1, tau / ||delta||), the share of a difference that clipping leaves."""
    norm = math.sqrt(norm2)
    return 1.0 if norm <= bound else bound / norm


def _follow(known: float, seen: float) -> float:
    """The EMA after one more value. NaN means unknown."""
    return seen if math.isnan(known) else NORM_DECAY * known + (1.0 - NORM_DECAY) * seen
