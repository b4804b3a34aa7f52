"""The ledger in fixed point: additions to the anchor may come in any order, and give the same bits.

Floating-point sums depend on their order; integer sums do not. The truth of a shared anchor is therefore one int64 for
each parameter, in units of 2^-32, and `a` is its fp32 image:

    a = fp32(2^-32 fixed)        |a| < 2^31, a step of 2.3e-10

Additions wrap modulo 2^64. Saturation would depend on the order. The state of such a ledger travels exactly, and two
chunks have equal digests only if they are equal.

A peer may be ahead of the shared state by a `lead` of its own: then a = fp32(2^-32 (fixed + lead)). Digests,
fingerprints, samples and frozen states cover `fixed` alone.

A chunk is `loose` while no other peer shares it. Then `a` itself is the truth, bit for bit, and `fixed` is unused. A
lone peer is therefore the bare optimizer. A checkpoint may be loaded straight into `a`, and `fixed` takes no memory
until the first `settle`. Nothing here may know messages, codecs or weights.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import Keep, Ledger, Step, in_memory
from gossipdp.codecs.base import BLOCK, Buffer, Vector
from gossipdp.protocol import jobs

__all__ = [
    "SCALE",
    "FixedLedger",
    "Integers",
    "Where",
    "fingerprint",
    "magnitude",
    "pack",
    "to_fixed",
    "to_float",
    "unpack",
]

Integers: TypeAlias = NDArray[np.int64]
Where: TypeAlias = "slice | NDArray[np.int64]"
"""parameters of a chunk: a slice of all, or ascending indices"""

SCALE: Final = 2.0**32
"""fixed-point units in 1.0"""
LARGEST: Final = np.float32(2.0**30)
"""largest magnitude that a new model may have; half of the range is left for additions"""
_WORD: Final = 8
"""bytes of a fixed-point number"""
_NORM_BITS: Final = 15
"""bits of a term that enter `magnitude`, so that the integer sum of squares cannot overflow"""


def to_fixed(values: NDArray[np.float32] | NDArray[np.float64], most: float = float(LARGEST)) -> Integers:
    """The nearest fixed-point numbers, ties to even, cut to +-`most`. `values` must hold no NaN."""
    scaled = np.multiply(values, SCALE, dtype=np.float64)
    np.rint(scaled, out=scaled)
    np.clip(scaled, -most * SCALE, most * SCALE, out=scaled)
    return scaled.astype(np.int64)


def to_float(fixed: Integers) -> Vector:
    """The fp32 image of fixed-point numbers. IEEE 754 fixes each rounding, so it is the same on every machine."""
    return (fixed * (1.0 / SCALE)).astype(np.float32)


def magnitude(terms: Integers) -> float:
    """||terms|| in units of a parameter, rounded up by at most 1 part in 1,000.

    The sum is in integers, so every peer gets the same number and makes the same decision on it. Needs |terms| < 2^62.
    """
    if not terms.size:
        return 0.0
    sizes = np.abs(terms)
    shift = max(int(sizes.max()).bit_length() - _NORM_BITS, 0)
    sizes += (1 << shift) - 1
    sizes >>= shift
    return math.ldexp(math.sqrt(int(np.dot(sizes, sizes))), shift - 32)


def fingerprint(first: int, where: Where, terms: Integers) -> int:
    """A linear hash: the sum modulo 2^64 of each term times an odd number drawn from its index.

    The numbers come from the finalizer of SplitMix64 (Steele, Lea & Flood 2014). Fingerprints add up like the states,
    so peers can compare what they held at the end of an epoch although they have applied more since. It misses an
    accidental difference with a probability of about 2^-64. It does not resist an attacker; `fixed_hash` does.

    Args:
        first: index of the chunk's first parameter.
        where: parameters of the chunk.
        terms: their integers.
    """
    if isinstance(where, slice):
        places = np.arange(first, first + len(terms), dtype=np.uint64)
    else:
        places = where.astype(np.uint64) + np.uint64(first)
    places *= np.uint64(0x9E3779B97F4A7C15)
    places ^= places >> np.uint64(30)
    places *= np.uint64(0xBF58476D1CE4E5B9)
    places ^= places >> np.uint64(27)
    places |= np.uint64(1)
    places *= terms.view(np.uint64)
    return int(np.sum(places, dtype=np.uint64))


def pack(fixed: Integers) -> Buffer:
    """The exact state of a chunk as bytes.

    First one byte for each block of 256 parameters: the bytes that one parameter of it needs (0 to 8). Then the blocks,
    from the narrowest width to the widest and in order within a width, in little-endian two's complement. Zeros fill
    the last block. Four bytes suffice where |a| < 1/2, so the payload is about as long as fp32.
    """
    blocks = _blocks(fixed)
    # x ^ (x >> 63) has the bits of x or -x - 1. A block needs the bits of the union, and one for the sign.
    bits = np.bitwise_or.reduce(blocks ^ (blocks >> 63), axis=1).astype(np.float64)
    widths = np.where(blocks.any(axis=1), np.frexp(bits)[1] // 8 + 1, 0).astype(np.uint8)
    # A float of 63 ones rounds up to 2^63, and its exponent would ask for a ninth byte.
    np.minimum(widths, _WORD, out=widths)
    parts = [widths.tobytes()]
    for width in range(1, _WORD + 1):
        rows = blocks[widths == width].astype("<i8", copy=False)
        parts.append(np.ascontiguousarray(rows.view(np.uint8).reshape(-1, _WORD)[:, :width]).tobytes())
    return b"".join(parts)


def unpack(payload: Buffer, size: int) -> Integers | None:
    """The `size` parameters that `pack` wrote. None if `pack` writes no such payload."""
    count = -(-size // BLOCK)
    data = np.frombuffer(payload, np.uint8)
    if len(data) < count:
        return None
    widths = data[:count]
    if widths.max() > _WORD or len(data) != count + BLOCK * int(widths.sum(dtype=np.int64)):
        return None
    blocks: Integers = np.zeros((count, BLOCK), np.int64)
    at = count
    for width in range(1, _WORD + 1):
        rows = np.flatnonzero(widths == width)
        if not len(rows):
            continue
        stop = at + len(rows) * BLOCK * width
        words = np.zeros((len(rows) * BLOCK, _WORD), np.uint8)
        words[:, _WORD - width :] = data[at:stop].reshape(-1, width)
        blocks[rows] = words.view("<i8").reshape(-1, BLOCK) >> (8 * (_WORD - width))
        at = stop
    return blocks.reshape(-1)[:size]


def _blocks(fixed: Integers) -> Integers:
    count = -(-len(fixed) // BLOCK)
    if len(fixed) % BLOCK:
        fixed = np.concatenate([fixed, np.zeros(count * BLOCK - len(fixed), np.int64)])
    return fixed.reshape(count, BLOCK)


def fixed_hash(fixed: Integers) -> bytes:
    """16-byte BLAKE2b of a chunk's state, independent of its encoding."""
    data = fixed.astype("<i8", copy=False).data
    return hashlib.blake2b(data, digest_size=16, person=b"gossipdp fixed").digest()


class FixedLedger(Ledger):
    """A `Ledger` with an anchor in fixed point, and the same arguments. `v` holds the residual of `epidemic`.

    `freeze`, `adopt` and `resync` carry the exact state instead of bfloat16.
    """

    def __init__(self, size: int, trainable: int, chunk_parameters: int, keep: Keep = in_memory) -> None:
        super().__init__(size, trainable, chunk_parameters, keep)
        self.fixed: Integers = np.zeros(size, np.int64)
        self.lead: Integers | None = None
        """movement of this peer that the shared state does not have; None until there is one"""
        self._loose = set(range(self.chunks))
        self._followed: dict[int, Buffer] = {}
        """by chunk: the sum that `resync` added, in int64, until `conclude`"""

    # -- what is shared ---------------------------------------------------------------------------------------

    def settle(self, chunk: int) -> None:
        """Make `fixed` the truth of `chunk`: a and pending are rounded to multiples of 2^-32."""
        if chunk in self._loose:
            self._loose.discard(chunk)
            self._place(chunk, slice(None), to_fixed(self.a[self.span(chunk)]))

    def add(self, chunk: int, where: Where, terms: Integers) -> None:
        """Add terms to `fixed` at `where` of the chunk. a and pending move by the change of the fp32 image."""
        self.settle(chunk)
        self._place(chunk, where, self.fixed[self.span(chunk)][where] + terms)

    def add_lead(self, chunk: int, where: Where, terms: Integers) -> None:
        """Add terms to `lead` at `where` of the chunk. a and pending move as in `add`."""
        self.settle(chunk)
        if self.lead is None:
            self.lead = np.zeros(self.size, np.int64)
        self.lead[self.span(chunk)][where] += terms
        self._place(chunk, where, self.fixed[self.span(chunk)][where])

    def _clear_lead(self, chunk: int) -> None:
        if self.lead is not None:
            self.lead[self.span(chunk)] = 0

    def digest(self, chunk: int) -> bytes:
        """The hash of the shared chunk, as `freeze` gives it. Equal only for equal chunks."""
        self.settle(chunk)
        return fixed_hash(self.fixed[self.span(chunk)])

    def fingerprint(self, chunk: int) -> int:
        """The linear hash of the shared chunk. The fingerprints of all chunks sum to that of the state."""
        self.settle(chunk)
        span = self.span(chunk)
        return fingerprint(span.start, slice(None), self.fixed[span])

    def _place(self, chunk: int, where: Where, fixed: Integers) -> None:
        span = self.span(chunk)
        self.fixed[span][where] = fixed
        values = to_float(fixed if self.lead is None else fixed + self.lead[span][where])
        a, pending = self.a[span], self.pending(chunk)
        # The difference of two fp32 numbers this close is exact, so x and a cannot drift apart.
        pending[where] += values - a[where]
        a[where] = values

    def sample(self, starts: tuple[int, ...]) -> Vector:
        """RUN values from each start, as `Ledger.sample`, but without the lead: a witness judges shared states."""
        return np.concatenate([self._shared(slice(start, start + jobs.RUN)) for start in starts])

    def compare(self, runs: tuple[tuple[int, int, int], ...], size: int, payload: Buffer) -> jobs.Compared | None:
        """Distance of `payload` to the shared state, as `Ledger.compare`."""
        if self.lead is None or memoryview(payload).nbytes != 4 * size:
            return super().compare(runs, size, payload)
        # The lead is added to the payload too, so it cancels.
        values = np.frombuffer(payload, "<f4").copy()
        for place, first, length in runs:
            span = slice(first, first + length)
            values[place : place + length] += self.a[span] - self._shared(span)
        return super().compare(runs, size, values.data)

    def _shared(self, span: slice) -> Vector:
        """`a` without the lead."""
        leads = self.lead is not None and self.lead[span].any()
        return to_float(self.fixed[span]) if leads else self.a[span]

    # -- a lone peer -------------------------------------------------------------------------------------------

    def found(self, chunk: int) -> bool:
        """Set a := x on `chunk`. False, without a change, if x is not finite there or exceeds 2^30."""
        assert self.x is not None
        x = self.x[self.span(chunk)]
        if not (x.min() >= -LARGEST and x.max() <= LARGEST and super().found(chunk)):
            return False
        self._loose.add(chunk)
        self._clear_lead(chunk)
        return True

    def outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> Step:
        """The outer step of `Ledger`, for a lone peer only, because other peers do not learn of it."""
        self._loose.add(chunk)
        self._clear_lead(chunk)
        return super().outer_step(chunk, lr, momentum, applied)

    # -- state transfer ---------------------------------------------------------------------------------------

    def freeze(self, chunk: int) -> jobs.Frozen:
        """Copy the exact state of the chunk (see `pack`) and hash it."""
        self.settle(chunk)
        fixed = self.fixed[self.span(chunk)]
        return jobs.Frozen(self._keep(pack(fixed)), fixed_hash(fixed))

    def adopt(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """Set a to the source's anchor, bit for bit, and v := 0. False, without a change, if the payload is wrong."""
        fixed = self._unpacked(chunk, payload, digest)
        if fixed is not None:
            span = self.span(chunk)
            self._loose.discard(chunk)
            self._clear_lead(chunk)
            self.fixed[span], self.a[span], self.v[span] = fixed, to_float(fixed), 0.0
        return fixed is not None

    def resync(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """Adopt a chunk while training goes on. `conclude` keeps the change or takes it back."""
        fixed = self._unpacked(chunk, payload, digest)
        if fixed is not None:
            span = self.span(chunk)
            self.settle(chunk)
            moved = fixed - self.fixed[span]
            before = self._followed.get(chunk)
            total = moved if before is None else np.frombuffer(before, np.int64) + moved
            self._followed[chunk] = self._keep(total.data.cast("B"))
            self._place(chunk, slice(None), fixed)
        return fixed is not None

    def conclude(self, chunk: int, *, back: bool) -> None:
        """End the resync of `chunk`: keep its change, or take it back exactly with `back`.

        v becomes 0 if the change stays. With `back` v keeps its value, because no other copy of the residual exists.
        """
        kept = self._followed.pop(chunk, None)
        if kept is not None and back:
            self.add(chunk, slice(None), -np.frombuffer(kept, np.int64))
        elif kept is not None:
            self.v[self.span(chunk)] = 0.0
            self._clear_lead(chunk)
            self._place(chunk, slice(None), self.fixed[self.span(chunk)])

    def _unpacked(self, chunk: int, payload: Buffer, digest: bytes) -> Integers | None:
        span = self.span(chunk)
        fixed = unpack(payload, span.stop - span.start)
        return fixed if fixed is not None and fixed_hash(fixed) == digest else None
