"""What every algorithm shares: the ledger of one peer, and how jobs reach it.

The ledger holds the anchor `a`, the outer momentum `v` and `pending`, the corrections not yet known to be inside
the live parameters `x` (algorithms section 1). Its invariant, at every instant:

    x + pending - a = inner progress since the last snapshot

One thread owns all of it; nothing here may lock, wait, or know a peer. Vectors are flat fp32 in schema order.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import moments
from gossipdp.codecs.base import BLOCK, Buffer, Vector
from gossipdp.protocol import jobs
from gossipdp.protocol.schema import chunk_spans

__all__ = ["Algorithm", "Ledger", "OnLedger", "block_max", "longest_of_late"]

LARGEST: Final = 2.0**100
"""no weight is as large, and sums of many that are would be infinite"""
FADING: Final = 1.0 - 2.0**-5
"""of the longest outer step, with each that follows"""
OUTLIER: Final = 8.0
"""times as long as the one that follows: more is not remembered of it"""


class Algorithm(Protocol):
    """Executes jobs on the vectors of one peer, one at a time, in order."""

    ledger: Ledger

    def run(self, job: jobs.Job) -> jobs.Result:
        """The job's result, as its docstring says. A partner's fault is in the result, never raised."""


class OnLedger(ABC):
    """What every algorithm does with a job: nearly all of it is the ledger's. A subclass answers its own jobs first."""

    ledger: Ledger

    def run(self, job: jobs.Job) -> jobs.Result:
        match job:
            case jobs.Check(chunk):
                return jobs.Checked(self.ledger.check(chunk))
            case jobs.OuterStep(chunk, lr, momentum, applied):
                return self._outer_step(chunk, lr, momentum, applied)
            case jobs.Seal():
                return self.ledger.seal()
            case jobs.Release(slot):
                return self.ledger.release(slot)
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
            case jobs.Adopt(chunk, payload, digest):
                return self._taken(chunk, self.ledger.adopt(chunk, payload, digest))
            case jobs.Resync(chunk, payload, digest):
                return self._taken(chunk, self.ledger.resync(chunk, payload, digest))
            case jobs.Conclude(chunk, back):
                return self.ledger.conclude(chunk, back=back)
            case jobs.Sample(starts):
                return self._sample(starts)
            case jobs.Compare(runs, size, payload):
                return self.ledger.compare(runs, size, payload)
            case jobs.CheckMoments(_, size, payload, digest):
                return jobs.Checked(moments.digest(payload) == digest and moments.check(payload, size))
            case jobs.Allocate(size, trainable, chunk_parameters):
                return self.allocate(size, trainable, chunk_parameters)
        raise TypeError(f"no such job: {job!r}")

    @abstractmethod
    def allocate(self, size: int, trainable: int, chunk_parameters: int) -> None:
        """Make room for a model; what was held before is gone."""

    @abstractmethod
    def _outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> jobs.Stepped:
        """Of the ledger, and what the algorithm learns from it."""

    @abstractmethod
    def _taken(self, chunk: int, taken: bool) -> jobs.Checked:
        """Another's state stands on `chunk` now, if it was `taken`."""

    @abstractmethod
    def _sample(self, starts: tuple[int, ...]) -> jobs.Sampled:
        """Values of the anchor, and how far it usually is from others and moves in a round."""


class Ledger:
    """a, v and pending of one peer, by chunks.

    Args:
        size: parameters in all, padding included.
        trainable: where buffers begin, a multiple of 256 if there are any; from there on lr is 1 and momentum 0, which
            makes plain averages.
        chunk_parameters: parameters a chunk; a multiple of 256.
    """

    def __init__(self, size: int, trainable: int, chunk_parameters: int) -> None:
        if not (0 <= trainable <= size and size > 0 and chunk_parameters % BLOCK == 0):
            raise ValueError(f"size {size}, trainable {trainable}, chunk_parameters {chunk_parameters}")
        self.size, self.trainable, self.chunk_parameters = size, trainable, chunk_parameters
        self._spans = chunk_spans(size, trainable, chunk_parameters)
        self.chunks = len(self._spans)
        self.a: Vector = np.zeros(size, np.float32)
        self.v: Vector = np.zeros(size, np.float32)
        self.x: Vector | None = None
        self._slots: tuple[Vector, Vector] | None = None
        self._open = 1
        self._dirty: tuple[set[int], set[int]] = (set(), set())
        self._sealed = 0
        self._resynced: dict[int, Vector] = {}
        """what `resync` has added to chunks, while it may be taken back"""
        self._scratch: Vector = np.zeros(min(size, chunk_parameters), np.float32)

    def span(self, chunk: int) -> slice:
        return self._spans[chunk]

    def averaged(self, chunk: int) -> bool:
        """Does `chunk` hold buffers? They count in no norm of the parameters."""
        return int(self._spans[chunk].start) >= self.trainable

    def chunks_of(self, starts: tuple[int, ...]) -> list[int]:
        """The chunks in which these parameters stand, in order."""
        firsts = [span.start for span in self._spans]
        return sorted({bisect_right(firsts, start) - 1 for start in starts})

    # -- the training process ---------------------------------------------------------------------------------

    def bind(self, x: Vector, slots: tuple[Vector, Vector]) -> None:
        """Use these shared vectors for x and the two slots from now on; slots must be zero."""
        self.x, self._slots = x, slots
        self._open, self._sealed = 1, 0
        self._dirty = (set(), set())

    def unbind(self) -> None:
        """No training process: corrections need not be kept, for the next one starts from the anchor."""
        self.x = self._slots = None

    @property
    def open_slot(self) -> int:
        """Number of the slot that collects corrections now; its buffer is `number % 2`."""
        return self._open

    def pending(self, chunk: int) -> Vector:
        """The open slot's part of `chunk`, to be added to; a throw-away vector while nobody trains."""
        span = self.span(chunk)
        if self._slots is None:
            return self._scratch[: span.stop - span.start]
        self._dirty[self._open % 2].add(chunk)
        return self._slots[self._open % 2][span]

    def outstanding(self, chunk: int, applied: int) -> Vector:
        """Sum of the corrections on `chunk` in slots past `applied`, a new vector."""
        span = self.span(chunk)
        total: Vector = np.zeros(span.stop - span.start, np.float32)
        if self._slots is not None:
            for number in {self._sealed, self._open}:
                if number > applied and chunk in self._dirty[number % 2]:
                    total += self._slots[number % 2][span]
        return total

    def found(self, chunk: int) -> bool:
        """a := x on `chunk` if x is finite there."""
        assert self.x is not None
        span = self.span(chunk)
        if not _finite(self.x[span]):
            return False
        self.a[span] = self.x[span]
        return True

    def attach(self, chunk: int) -> None:
        """x := a on `chunk`; what was pending on it is inside x by that."""
        assert self.x is not None and self._slots is not None
        span = self.span(chunk)
        self.x[span] = self.a[span]
        for slot, dirty in zip(self._slots, self._dirty, strict=True):
            if chunk in dirty:
                slot[span] = 0.0
                dirty.discard(chunk)

    def check(self, chunk: int) -> bool:
        """Is the snapshot finite on `chunk`, and will the anchor be that follows it?"""
        assert self.x is not None
        return _finite(self.x[self.span(chunk)])

    def seal(self) -> jobs.Sealed:
        """Hand the open slot out and open the next. The one handed out before must have been released."""
        dirty = self._dirty[self._open % 2]
        if self._slots is None or not dirty or self._dirty[(self._open + 1) % 2]:
            return jobs.Sealed(0, ())
        self._sealed, self._open = self._open, self._open + 1
        return jobs.Sealed(self._sealed, tuple(sorted(dirty)))

    def release(self, slot: int) -> None:
        """`slot` is inside x now: its buffer serves again."""
        if self._slots is None or slot != self._sealed or slot == self._open:
            return
        buffer, dirty = self._slots[slot % 2], self._dirty[slot % 2]
        for chunk in dirty:
            buffer[self.span(chunk)] = 0.0
        dirty.clear()

    # -- the outer step ---------------------------------------------------------------------------------------

    def outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> tuple[Vector, Vector]:
        """One Nesterov step of the outer optimizer on `chunk`, from the snapshot in x (DiLoCo, arXiv 2311.08105).

            D = a - (x + slots > applied);   v <- mu v + D;   m = -alpha (D + mu v)
            a += m;   pending += (1 - alpha) D - alpha mu v

        The last line equals a_new - (x + pending). With alpha 1 and mu 0 it is exactly zero, so that a lone peer is
        the bare optimizer bit for bit; v is then set to 0.

        Returns:
            D and m, fp32 vectors of the chunk.
        """
        assert self.x is not None
        span = self.span(chunk)
        x_now = self.x[span] + self.outstanding(chunk, applied)
        pseudo_gradient = self.a[span] - x_now
        if self.averaged(chunk) or (lr == 1.0 and momentum == 0.0):
            self.v[span] = 0.0
            correction = None
        else:
            alpha, mu = np.float32(lr), np.float32(momentum)
            v, correction = self.v[span], pseudo_gradient * (np.float32(1.0) - alpha)
            if momentum:
                v *= mu
                v += pseudo_gradient
                correction -= (alpha * mu) * v
            else:
                v[:] = 0.0
        if correction is not None and correction.any():
            pending = self.pending(chunk)
            pending += correction
            x_now += correction
        movement = x_now - self.a[span]
        self.a[span] = x_now
        return pseudo_gradient, movement

    # -- state transfer ---------------------------------------------------------------------------------------

    def freeze(self, chunk: int) -> jobs.Frozen:
        """A copy of the anchor's chunk, and its hash: buffers as they are, parameters as bfloat16 (to nearest even)."""
        if self.averaged(chunk):
            exact = self.a[self.span(chunk)].astype("<f4")
            return jobs.Frozen(exact.data.cast("B"), state_hash(exact.data))
        bits = self.a[self.span(chunk)].view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        payload = ((bits + half) >> np.uint32(16)).astype("<u2")
        return jobs.Frozen(payload.data.cast("B"), state_hash(payload.data))

    def adopt(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """a := payload on `chunk`, v := 0, if length and hash are right and every value is finite."""
        values = self._thawed(chunk, payload, digest)
        if values is not None:
            span = self.span(chunk)
            self.a[span] = values
            self.v[span] = 0.0
        return values is not None

    def resync(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """As `adopt`, while x is trained on: x + pending moves by what a moves by, so the invariant holds. It may be
        taken back until it is concluded."""
        values = self._thawed(chunk, payload, digest)
        if values is not None:
            span = self.span(chunk)
            moved = values - self.a[span]
            pending = self.pending(chunk)
            pending += moved
            self.a[span] = values
            self.v[span] = 0.0
            before = self._resynced.get(chunk)
            self._resynced[chunk] = moved if before is None else before + moved
        return values is not None

    def conclude(self, chunk: int, *, back: bool) -> None:
        """What has been done to `chunk` by `resync` stays, or with `back` is taken back. Steps taken since stay in
        either case; v begins anew."""
        moved = self._resynced.pop(chunk, None)
        if moved is not None and back:
            pending = self.pending(chunk)
            pending -= moved
            self.a[self.span(chunk)] -= moved

    def _thawed(self, chunk: int, payload: Buffer, digest: bytes) -> Vector | None:
        """What `freeze` wrote, or None if it is not that, or not finite."""
        span, exact = self.span(chunk), self.averaged(chunk)
        each = 4 if exact else 2
        if memoryview(payload).nbytes != each * (span.stop - span.start) or state_hash(payload) != digest:
            return None
        values: Vector
        if exact:
            values = np.frombuffer(payload, "<f4").astype(np.float32)
        else:
            values = (np.frombuffer(payload, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values if _finite(values) else None

    def sample(self, starts: tuple[int, ...]) -> Vector:
        """RUN values of the anchor from each start on, fewer where the model ends; a new vector."""
        return np.concatenate([self.a[start : start + jobs.RUN] for start in starts])

    def compare(self, runs: tuple[tuple[int, int, int], ...], size: int, payload: Buffer) -> jobs.Compared | None:
        """Distance of the anchor to `payload` over `runs`; None if payload has another length, or NaN or Inf."""
        if memoryview(payload).nbytes != 4 * size:
            return None
        values: Vector = np.frombuffer(payload, "<f4")
        if size == 0 or not _finite(values):
            return None
        count, distance2, scale2 = 0, 0.0, 0.0
        for place, first, length in runs:
            theirs = values[place : place + length].astype(np.float64)
            count += length
            distance2 += float(np.sum((self.a[first : first + length] - theirs) ** 2))
            scale2 += float(np.sum(theirs**2))
        if not count:
            return jobs.Compared(math.nan, math.nan)
        return jobs.Compared(math.sqrt(distance2 / count), math.sqrt(scale2 / count))


def state_hash(payload: Buffer) -> bytes:
    """16-byte BLAKE2b of a frozen chunk."""
    return hashlib.blake2b(payload, digest_size=16, person=b"gossipdp state").digest()


def block_max(values: Vector) -> NDArray[np.float32]:
    """max |value| of each block of 256, shape (ceil(n / 256),); the last block may be short."""
    maxima: NDArray[np.float32] = np.maximum.reduceat(np.abs(values), np.arange(0, len(values), BLOCK))
    return maxima


def longest_of_late(known: float, step: float) -> float:
    """The longest outer step, which fades as others follow; NaN is unknown. Training moves less and less: by its last
    step alone, a witness would deny a state of a while ago what everybody, itself too, has moved by since. One step
    that was far too long is soon forgotten."""
    kept = FADING * known
    return float(np.fmax(min(kept, OUTLIER * step) if step > 0.0 else kept, step))


def _finite(values: Vector) -> bool:
    """So are sums of many such values."""
    # NaN propagates through min and max, so two SIMD passes see everything without a temporary.
    return float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST
