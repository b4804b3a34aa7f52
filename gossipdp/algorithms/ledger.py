"""The ledger of one peer: anchor `a`, outer momentum `v`, and `pending` (algorithms section 1).

`pending` holds the corrections that may not be inside the live parameters `x` yet. The invariant, at every instant:

    x + pending - a = inner progress since the last snapshot

Methods on one chunk share nothing with those on other chunks, so chunks may be worked on by several threads. All other
methods need the ledger alone. The code never locks or waits, and knows no peer. Vectors are flat fp32 in schema order.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms import kernels
from gossipdp.algorithms.swings import Swings
from gossipdp.codecs.base import Buffer, Vector
from gossipdp.codecs.blocks import BLOCK, Blocks
from gossipdp.protocol import jobs
from gossipdp.protocol.schema import chunk_spans

__all__ = ["LARGEST", "Keep", "Ledger", "Step", "block_max", "decayed_maximum", "in_memory", "squared", "state_hash"]

Keep: TypeAlias = Callable[[Buffer], Buffer]
"""returns the same bytes, from a place where they may stay for minutes"""

LARGEST: Final = 2.0**100
"""largest magnitude that a peer accepts in an anchor; sums of many such values stay finite"""
FADING: Final = 1.0 - 2.0**-5
"""factor by which the remembered longest step shrinks at each further step"""
OUTLIER: Final = 8.0
"""cap of the remembered longest step, as a multiple of the newest step"""


def in_memory(payload: Buffer) -> Buffer:
    """Keep `payload` where it is."""
    return payload


class Step(NamedTuple):
    """What an outer step did to one chunk: ||D||^2, ||m||^2, the largest |m| of each block, shape (blocks,), and g."""

    pseudo_gradient2: float
    movement2: float
    largest: NDArray[np.float32]
    gain: float
    """how far the chunk's rounds swing (`swings`)"""


class Ledger:
    """a, v and pending of one peer, in chunks.

    Args:
        size: all parameters, padding included.
        trainable: index of the first buffer element, a multiple of 256 if the model has buffers. Buffers use lr 1 and
            momentum 0, so they become plain averages.
        chunk_parameters: parameters of one chunk, a multiple of 256.
        keep: called with copies of the anchor, and with what undoes a re-sync.
        tensors: first parameter of each tensor, ascending. No block spans two tensors.

    Raises:
        ValueError: the sizes do not fit each other.
    """

    def __init__(
        self,
        size: int,
        trainable: int,
        chunk_parameters: int,
        keep: Keep = in_memory,
        tensors: Sequence[int] = (),
    ) -> None:
        if not (0 <= trainable <= size and size > 0 and chunk_parameters % BLOCK == 0):
            raise ValueError(f"size {size}, trainable {trainable}, chunk_parameters {chunk_parameters}")
        self.size, self.trainable, self.chunk_parameters, self._keep = size, trainable, chunk_parameters, keep
        self._spans = chunk_spans(size, trainable, chunk_parameters)
        self.chunks = len(self._spans)
        self.blocks: list[Blocks] = [_blocks(span, tensors) for span in self._spans]
        """of each chunk"""
        self.a: Vector = np.zeros(size, np.float32)
        self.v: Vector = np.zeros(size, np.float32)
        self.lookahead: Vector = np.zeros(self.chunks, np.float32)
        """alpha (mu + 1 - made) of each chunk's last outer step, which left the anchor ahead by that times -v; 0 after
        `rest`"""
        self._buffers: tuple[Vector, Vector] | None = None
        self._open = 1
        self._dirty: tuple[set[int], set[int]] = (set(), set())
        """by buffer: the chunks on which it holds corrections; on all others it may hold anything"""
        self._resynced: dict[int, Buffer] = {}
        """by chunk: the sum that `resync` added, in fp32, until `conclude`"""
        self._swings = Swings([span for span in self._spans if span.start < trainable])

    def span(self, chunk: int) -> slice:
        """The parameters of `chunk` in the flat vector."""
        return self._spans[chunk]

    def averaged(self, chunk: int) -> bool:
        """Whether `chunk` holds buffers, which count in no norm of the parameters."""
        return int(self._spans[chunk].start) >= self.trainable

    def chunks_of(self, starts: tuple[int, ...]) -> list[int]:
        """The chunks that contain these parameters, in order."""
        firsts = [span.start for span in self._spans]
        return sorted({bisect_right(firsts, start) - 1 for start in starts})

    # -- the training process ---------------------------------------------------------------------------------

    def bind(self, buffers: tuple[Vector, Vector]) -> None:
        """Use these two shared vectors, shape (size,) each. x is in the first one; the second one may hold anything."""
        self._buffers = buffers
        self._open = 1
        self._dirty = (set(), set())
        self._swings.begin()

    def unbind(self) -> None:
        """Forget the buffers: the next training process starts from the anchor and needs no correction."""
        self._buffers = None

    @property
    def x(self) -> Vector | None:
        """The buffer that is not open, where model and snapshots stand; None without a training process."""
        return None if self._buffers is None else self._buffers[(self._open - 1) % 2]

    @property
    def open_slot(self) -> int:
        """Number of the slot that collects corrections. Its buffer is `number % 2`."""
        return self._open

    def pending(self, chunk: int) -> Vector:
        """The open slot's part of `chunk`, for the caller to add to; a new vector without a training process."""
        span = self.span(chunk)
        if self._buffers is None:
            return np.zeros(span.stop - span.start, np.float32)
        part, dirty = self._buffers[self._open % 2][span], self._dirty[self._open % 2]
        if chunk not in dirty:
            part[:] = 0.0  # it may hold an old snapshot
            dirty.add(chunk)
        return part

    def outstanding(self, chunk: int, applied: int) -> Vector:
        """Sum of the corrections of `chunk` in slots after number `applied`, a new vector."""
        span = self.span(chunk)
        total: Vector = np.zeros(span.stop - span.start, np.float32)
        if self._buffers is not None:
            for number in (self._open - 1, self._open):
                if number > applied and chunk in self._dirty[number % 2]:
                    total += self._buffers[number % 2][span]
        return total

    def found(self, chunk: int) -> bool:
        """Set a := x on `chunk`. False, without a change, if x is not finite there."""
        assert self.x is not None
        span = self.span(chunk)
        if not _finite(self.x[span]):
            return False
        self.a[span] = self.x[span]
        return True

    def attach(self, chunk: int) -> jobs.Replaced:
        """Set x := a on `chunk` and drop its corrections, because x then contains them. Returns how far x was."""
        assert self.x is not None
        span = self.span(chunk)
        x, a = self.x[span], self.a[span]
        np.subtract(x, a, out=x)
        replaced = jobs.Replaced(squared(x), squared(a))
        x[:] = a
        for dirty in self._dirty:
            dirty.discard(chunk)
        return replaced

    def check(self, chunk: int) -> bool:
        """Whether the snapshot on `chunk` is finite, and small enough that the next anchor is finite too."""
        assert self.x is not None
        return _finite(self.x[self.span(chunk)])

    def seal(self) -> jobs.Sealed:
        """Seal the open slot and open the next one, in the buffer where x was.

        The caller makes sure that the training process writes nothing there from now on.

        Returns:
            The sealed slot and its dirty chunks. Slot 0 if nothing is dirty, or the slot before is not released yet.
        """
        dirty = self._dirty[self._open % 2]
        if self._buffers is None or not dirty or self._dirty[(self._open + 1) % 2]:
            return jobs.Sealed(0, ())
        self._open += 1
        return jobs.Sealed(self._open - 1, tuple(sorted(dirty)))

    def release(self, slot: int) -> None:
        """The corrections of `slot` are inside x now: its buffer is free for the next snapshot."""
        if slot == self._open - 1:
            self._dirty[slot % 2].clear()

    # -- the outer step ---------------------------------------------------------------------------------------

    def outer_step(
        self,
        chunk: int,
        lr: float,
        momentum: float,
        applied: int,
        part: float = 1.0,
        made: float = 1.0,
    ) -> Step:
        """One Nesterov step of the outer optimizer on `chunk`, from the snapshot in x (DiLoCo, arXiv 2311.08105).

            D = a - (x + slots > applied);   v <- mu v + D;   m = -alpha (D + mu v)
            a += m;   pending += (1 - alpha) D - alpha mu v

        The correction equals a_new - (x + pending). With alpha 1 and mu 0 it is exactly zero and v becomes 0. A lone
        peer is therefore the bare optimizer bit for bit.

        Args:
            lr: alpha.
            momentum: mu.
            applied: number of the last slot inside the snapshot.
            part: length of the round, as a share of a usual one.
            made: share of this peer's own round that was made.
        """
        assert self.x is not None and self._buffers is not None
        span, open_ = self.span(chunk), self._open % 2
        late, alpha, mu, gain = self._late(chunk, applied), 1.0, 0.0, 0.0
        if not self.averaged(chunk):
            gain = self._swings.measure(chunk, self.x[span], late, self.a[span], part)
            alpha, mu = lr, momentum * max(0.0, 1.0 - 2.0 * gain)
        pull = np.float32(alpha) * np.float32(mu)
        # A round that was cut short has caught up with a part of the lookahead before it.
        self.lookahead[chunk] = pull + np.float32(alpha * (1.0 - made)) if mu > 0.0 else 0.0
        maxima: Vector = np.empty(len(self.blocks[chunk]), np.float32)
        pseudo_gradient2, movement2, corrects = kernels.outer_step(
            self.x[span],
            late,
            self.a[span],
            self.v[span],
            self._buffers[open_][span],
            chunk not in self._dirty[open_],
            np.float32(1.0) - np.float32(alpha),
            np.float32(mu),
            pull,
            self.blocks[chunk].starts,
            maxima,
        )
        if corrects:
            self._dirty[open_].add(chunk)
        return Step(pseudo_gradient2, movement2, maxima, gain)

    def rest(self, chunk: int) -> NDArray[np.float32]:
        """Take the lookahead out of `chunk`: a += alpha (mu + 1 - made) v. The next call finds none.

        Returns:
            The largest movement of each block, shape (blocks,).
        """
        span = self.span(chunk)
        moved = self.lookahead[chunk] * self.v[span]
        pending = self.pending(chunk)
        pending += moved
        self.a[span] += moved
        self.lookahead[chunk] = 0.0
        return block_max(moved, self.blocks[chunk])

    def _late(self, chunk: int, applied: int) -> Vector:
        """What `outstanding` returns, without a copy where one slot holds it all; empty if there is nothing."""
        assert self._buffers is not None
        late = [n for n in (self._open - 1, self._open) if n > applied and chunk in self._dirty[n % 2]]
        if len(late) == 1:
            return self._buffers[late[0] % 2][self.span(chunk)]
        return self.outstanding(chunk, applied) if late else np.empty(0, np.float32)

    # -- state transfer ---------------------------------------------------------------------------------------

    def freeze(self, chunk: int) -> jobs.Frozen:
        """Copy the anchor's chunk and hash it. Buffers stay fp32; parameters become bfloat16, nearest, ties to even."""
        if self.averaged(chunk):
            exact = self.a[self.span(chunk)].astype("<f4")
            return jobs.Frozen(self._keep(exact.data.cast("B")), state_hash(exact.data))
        span = self.span(chunk)
        payload: NDArray[np.uint16] = np.empty(span.stop - span.start, "<u2")
        kernels.to_bfloat16(self.a[span], payload)
        return jobs.Frozen(self._keep(payload.data.cast("B")), state_hash(payload.data))

    def adopt(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """Set a := payload and v := 0 on `chunk`. False, without a change, if length, hash or a value is wrong."""
        values = self._thawed(chunk, payload, digest)
        if values is not None:
            span = self.span(chunk)
            self.a[span] = values
            self.v[span] = 0.0
        return values is not None

    def resync(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """Adopt a chunk while training goes on: x + pending moves as far as a, so the invariant holds.

        `conclude` keeps the change or takes it back.
        """
        values = self._thawed(chunk, payload, digest)
        if values is not None:
            span = self.span(chunk)
            moved = values - self.a[span]
            pending = self.pending(chunk)
            pending += moved
            self.a[span] = values
            self.v[span] = 0.0
            before = self._resynced.get(chunk)
            total = moved if before is None else np.frombuffer(before, np.float32) + moved
            self._resynced[chunk] = self._keep(total.data.cast("B"))
        return values is not None

    def conclude(self, chunk: int, *, back: bool) -> None:
        """End the resync of `chunk`: keep its change, or subtract it again with `back`. Later steps stay either way."""
        kept = self._resynced.pop(chunk, None)
        if kept is not None and back:
            moved, pending = np.frombuffer(kept, np.float32), self.pending(chunk)
            pending -= moved
            self.a[self.span(chunk)] -= moved

    def _thawed(self, chunk: int, payload: Buffer, digest: bytes) -> Vector | None:
        """The values of a payload of `freeze`. None if its length or hash is wrong, or a value is not finite."""
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
        """RUN values of the anchor from each start, fewer at the model's end; a new vector."""
        return np.concatenate([self.a[start : start + jobs.RUN] for start in starts])

    def sketches(self, starts: tuple[int, ...], chunks: Sequence[int]) -> NDArray[np.float64]:
        """The sketch of each of `chunks`, divided by the root of its size; shape (len(chunks), jobs.SUMS)."""
        signs = _signs(starts, max((span.stop - span.start for span in self._spans), default=0))
        return np.array([self._sketch(chunk, signs) for chunk in chunks], np.float64).reshape(-1, jobs.SUMS)

    def _sketch(self, chunk: int, signs: Vector) -> list[float]:
        values, width = self.a[self.span(chunk)], jobs.SUMS
        sums = [np.dot(values[first::width], signs[first : values.size : width]) for first in range(width)]
        return [float(each) / math.sqrt(values.size) for each in sums]

    def compare(self, job: jobs.Compare) -> jobs.Compared | None:
        """RMS distance of the anchor to a witness's values, RMS of those values, and the sketches of both.

        Returns:
            NaN in both distances if `runs` is empty. None if a buffer has another length or a value is not finite.
        """
        if memoryview(job.payload).nbytes != 4 * job.size:
            return None
        values: Vector = np.frombuffer(job.payload, "<f4").astype(np.float32)
        if job.size == 0 or not _finite(values):
            return None
        chunks = self._compare_sketches(job)
        if chunks is None:
            return None
        count, distance2, scale2 = 0, 0.0, 0.0
        for place, first, length in job.runs:
            theirs = values[place : place + length].astype(np.float64)
            count += length
            distance2 += float(np.sum((self.a[first : first + length] - theirs) ** 2))
            scale2 += float(np.sum(theirs**2))
        if not count:
            return jobs.Compared(math.nan, math.nan, chunks)
        return jobs.Compared(math.sqrt(distance2 / count), math.sqrt(scale2 / count), chunks)

    def _compare_sketches(self, job: jobs.Compare) -> tuple[jobs.ChunkCompared, ...] | None:
        """Compare chunk by chunk. None if the sketches have another length, or one is not finite."""
        if not memoryview(job.sketches).nbytes:
            return ()
        width = jobs.SUMS + 2
        if memoryview(job.sketches).nbytes != 4 * width * self.chunks:
            return None
        theirs = np.frombuffer(job.sketches, "<f4").astype(np.float64).reshape(self.chunks, width)[list(job.chunks)]
        if not np.isfinite(theirs[:, :-2]).all():
            return None
        compared = []
        off = np.linalg.norm(self.sketches(job.starts, job.chunks) - theirs[:, :-2], axis=1)
        for chunk, difference, (distance, step) in zip(job.chunks, off, theirs[:, -2:], strict=True):
            values = self.a[self.span(chunk)]
            scale = math.sqrt(squared(values) / values.size)
            compared.append(jobs.ChunkCompared(float(difference), scale, float(distance), float(step)))
        return tuple(compared)


def _signs(starts: tuple[int, ...], size: int) -> Vector:
    """+1 and -1 of equal probability, the same on every host; shape (size,)."""
    drawn = hashlib.shake_128(b"gossipdp sketch" + b"".join(start.to_bytes(8, "big") for start in starts))
    bits = np.unpackbits(np.frombuffer(drawn.digest(-(-size // 8)), np.uint8), count=size)
    return bits.astype(np.float32) * np.float32(2.0) - np.float32(1.0)


def state_hash(payload: Buffer) -> bytes:
    """16-byte BLAKE2b of a frozen chunk."""
    return hashlib.blake2b(payload, digest_size=16, person=b"gossipdp state").digest()


def block_max(values: Vector, blocks: Blocks | None = None) -> NDArray[np.float32]:
    """Largest |value| of each block, shape (blocks,). blocks: of one tensor if None."""
    blocks = blocks or Blocks.within(len(values))
    maxima: Vector = np.empty(len(blocks), np.float32)
    kernels.block_maxima(values, blocks.starts, maxima)
    return maxima


def _blocks(span: slice, tensors: Sequence[int]) -> Blocks:
    inside = tensors[bisect_right(tensors, span.start) : bisect_left(tensors, span.stop)]
    return Blocks.within(span.stop - span.start, np.array(inside, np.int64) - span.start)


def decayed_maximum(known: float, step: float) -> float:
    """The length of the longest recent outer step, after one more step of length `step`. NaN means unknown.

    Training moves less and less. A witness that knew only its last step would call an older state implausible. The
    maximum therefore decays slowly, and the cap `OUTLIER` soon forgets one step that was far too long.
    """
    kept = FADING * known
    return float(np.fmax(min(kept, OUTLIER * step) if step > 0.0 else kept, step))


def squared(values: Vector) -> float:
    """The squared norm; inf if it overflows."""
    with np.errstate(over="ignore"):
        return float(np.dot(values, values))


def _finite(values: Vector) -> bool:
    """Whether all values are finite and at most LARGEST, so that sums of many of them are finite too."""
    return float(kernels.largest(values)) <= LARGEST
