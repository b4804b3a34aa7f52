"""The ledger in fixed point: what is added to the anchor may come in any order, and gives the same bits.

Floating-point sums depend on their order; integers do not. So the truth of a shared anchor is one int64 a parameter,
in units of 2^-32, and `a` is what fp32 can show of it:

    a = fp32(2^-32 fixed)        |a| < 2^31, a step of 2.3e-10

Additions wrap modulo 2^64 instead of saturating, for where a sum saturates depends on its order too. The state of such
a ledger travels exactly; the digest of two equal states is equal, and that of others is not.

A peer may be ahead of what it shares, by a `lead` of its own: then a = fp32(2^-32 (fixed + lead)), and all that is
shared, digests, fingerprints, samples and frozen states, is of `fixed` alone.

While a chunk is `loose`, nobody shares it: `a` itself is the truth, every bit of it, and fixed means nothing. So a lone
peer is the bare optimizer, whatever writes into `a` (a checkpoint does) need not know of this, and until there is
company fixed takes no memory. What is shared is settled first. Nothing here may know messages, codecs or weights.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import Ledger
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
"""parameters of a chunk: all of them, or ascending indices"""

SCALE: Final = 2.0**32
"""units of a parameter"""
LARGEST: Final = np.float32(2.0**30)
"""a model with a value beyond this is not taken; it leaves half of the range to what will be added"""
_WORD: Final = 8
_NORM_BITS: Final = 15


def to_fixed(values: NDArray[np.float32] | NDArray[np.float64], most: float = float(LARGEST)) -> Integers:
    """The nearest fixed-point numbers, ties to even, cut to +-most; of no NaN."""
    scaled = np.multiply(values, SCALE, dtype=np.float64)
    np.rint(scaled, out=scaled)
    np.clip(scaled, -most * SCALE, most * SCALE, out=scaled)
    return scaled.astype(np.int64)


def to_float(fixed: Integers) -> Vector:
    """What fp32 shows of fixed-point numbers; the same on every machine, for each step is rounded as IEEE 754 says."""
    return (fixed * (1.0 / SCALE)).astype(np.float32)


def magnitude(terms: Integers) -> float:
    """||terms||, in units of a parameter: at most 1 part in 1,000 above the truth, and never below it.

    Summed in integers, so that every peer gets the same number: all must decide alike what is too long. |terms| < 2^62.
    """
    if not terms.size:
        return 0.0
    sizes = np.abs(terms)
    shift = max(int(sizes.max()).bit_length() - _NORM_BITS, 0)
    sizes += (1 << shift) - 1
    sizes >>= shift
    return math.ldexp(math.sqrt(int(np.dot(sizes, sizes))), shift - 32)


def fingerprint(first: int, where: Where, terms: Integers) -> int:
    """Of `terms` at `where` of a chunk that begins at parameter `first`: a sum modulo 2^64, each term times a number
    drawn from its place (Steele, Lea & Flood 2014, the finalizer of SplitMix64), and odd.

    It is linear: that of a state without an increment is the difference of theirs. So peers can compare what they held
    at the end of an epoch though more has been added since. It finds a difference that nobody made on purpose, with
    1 - 2^-64 or so; who looks for two states with one fingerprint finds them: against that there is `fixed_hash`.
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
    """An exact state: one byte a block of 256 parameters, how many bytes a parameter it needs (0 to 8); then, from the
    narrowest width to the widest, the blocks that need it in order, little-endian two's complement.

    The last block is filled up with zeros. Four bytes suffice where |a| < 1/2, so this is as long as fp32.
    """
    blocks = _blocks(fixed)
    # x ^ (x >> 63) has as many bits as x or -x - 1: a block needs those of the union, and one for the sign.
    bits = np.bitwise_or.reduce(blocks ^ (blocks >> 63), axis=1).astype(np.float64)
    widths = np.where(blocks.any(axis=1), np.frexp(bits)[1] // 8 + 1, 0).astype(np.uint8)
    # A float of 63 ones rounds up to 2^63, whose exponent asks for a ninth byte.
    np.minimum(widths, _WORD, out=widths)
    parts = [widths.tobytes()]
    for width in range(1, _WORD + 1):
        rows = blocks[widths == width].astype("<i8", copy=False)
        parts.append(np.ascontiguousarray(rows.view(np.uint8).reshape(-1, _WORD)[:, :width]).tobytes())
    return b"".join(parts)


def unpack(payload: Buffer, size: int) -> Integers | None:
    """What `pack` wrote of `size` parameters, or None if nothing of that size is written so."""
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
    """16-byte BLAKE2b of a chunk's state itself, however it travels."""
    data = fixed.astype("<i8", copy=False).data
    return hashlib.blake2b(data, digest_size=16, person=b"gossipdp fixed").digest()


class FixedLedger(Ledger):
    """As `Ledger`, with an anchor in fixed point; `v` is there for its owner to use. Arguments as there.

    `freeze`, `adopt` and `resync` carry the exact state instead of bfloat16.
    """

    def __init__(self, size: int, trainable: int, chunk_parameters: int) -> None:
        super().__init__(size, trainable, chunk_parameters)
        self.fixed: Integers = np.zeros(size, np.int64)
        self.lead: Integers | None = None
        """of this peer alone, once it has any"""
        self._loose = set(range(self.chunks))
        self._followed: dict[int, Integers] = {}
        """what `resync` has added to chunks, while it may be taken back"""

    # -- what is shared ---------------------------------------------------------------------------------------

    def settle(self, chunk: int) -> None:
        """From now on `fixed` is the truth of `chunk`: a loses what is below 2^-32, and pending with it."""
        if chunk in self._loose:
            self._loose.discard(chunk)
            self._place(chunk, slice(None), to_fixed(self.a[self.span(chunk)]))

    def add(self, chunk: int, where: Where, terms: Integers) -> None:
        """fixed += terms at `where` of the chunk; a and pending move by what fp32 sees of it."""
        self.settle(chunk)
        self._place(chunk, where, self.fixed[self.span(chunk)][where] + terms)

    def add_lead(self, chunk: int, where: Where, terms: Integers) -> None:
        """lead += terms at `where` of the chunk; a and pending move as by `add`."""
        self.settle(chunk)
        if self.lead is None:
            self.lead = np.zeros(self.size, np.int64)
        self.lead[self.span(chunk)][where] += terms
        self._place(chunk, where, self.fixed[self.span(chunk)][where])

    def _no_lead(self, chunk: int) -> None:
        """For whoever writes what is shared into a."""
        if self.lead is not None:
            self.lead[self.span(chunk)] = 0

    def digest(self, chunk: int) -> bytes:
        """Equal for equal chunks alone, and the hash that `freeze` gives."""
        self.settle(chunk)
        return fixed_hash(self.fixed[self.span(chunk)])

    def fingerprint(self, chunk: int) -> int:
        """See above; those of all chunks add up to that of the state."""
        self.settle(chunk)
        span = self.span(chunk)
        return fingerprint(span.start, slice(None), self.fixed[span])

    def _place(self, chunk: int, where: Where, fixed: Integers) -> None:
        span = self.span(chunk)
        self.fixed[span][where] = fixed
        values = to_float(fixed if self.lead is None else fixed + self.lead[span][where])
        a, pending = self.a[span], self.pending(chunk)
        # The difference of two fp32 numbers so near each other is exact: x and a cannot drift apart.
        pending[where] += values - a[where]
        a[where] = values

    def sample(self, starts: tuple[int, ...]) -> Vector:
        """As in `Ledger`, of what is shared: by how far this peer leads nobody's state is to be judged."""
        return np.concatenate([self._shared(slice(start, start + jobs.RUN)) for start in starts])

    def compare(self, runs: tuple[tuple[int, int, int], ...], size: int, payload: Buffer) -> jobs.Compared | None:
        """As in `Ledger`, with what is shared."""
        if self.lead is None or memoryview(payload).nbytes != 4 * size:
            return super().compare(runs, size, payload)
        # As far ahead as `a` is: what is left is the distance without the lead.
        values = np.frombuffer(payload, "<f4").copy()
        for place, first, length in runs:
            span = slice(first, first + length)
            values[place : place + length] += self.a[span] - self._shared(span)
        return super().compare(runs, size, values.data)

    def _shared(self, span: slice) -> Vector:
        """`a` but for the lead."""
        leads = self.lead is not None and self.lead[span].any()
        return to_float(self.fixed[span]) if leads else self.a[span]

    # -- what a lone peer does ---------------------------------------------------------------------------------

    def found(self, chunk: int) -> bool:
        """a := x on `chunk` if x is finite there and within +-2^30."""
        assert self.x is not None
        x = self.x[self.span(chunk)]
        if not (x.min() >= -LARGEST and x.max() <= LARGEST and super().found(chunk)):
            return False
        self._loose.add(chunk)
        self._no_lead(chunk)
        return True

    def outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> tuple[Vector, Vector]:
        """As in `Ledger`; only for a peer whose anchor nobody shares, for nobody is told of it."""
        self._loose.add(chunk)
        self._no_lead(chunk)
        return super().outer_step(chunk, lr, momentum, applied)

    # -- state transfer ---------------------------------------------------------------------------------------

    def freeze(self, chunk: int) -> jobs.Frozen:
        """The exact state of the chunk (see `pack`), and its hash."""
        self.settle(chunk)
        fixed = self.fixed[self.span(chunk)]
        return jobs.Frozen(pack(fixed), fixed_hash(fixed))

    def adopt(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """a := payload on `chunk`, v := 0, if it is well formed and of this hash: the giver's anchor, bit for bit."""
        fixed = self._unpacked(chunk, payload, digest)
        if fixed is not None:
            span = self.span(chunk)
            self._loose.discard(chunk)
            self._no_lead(chunk)
            self.fixed[span], self.a[span], self.v[span] = fixed, to_float(fixed), 0.0
        return fixed is not None

    def resync(self, chunk: int, payload: Buffer, digest: bytes) -> bool:
        """As `adopt`, while x is trained on; it may be taken back until it is concluded."""
        fixed = self._unpacked(chunk, payload, digest)
        if fixed is not None:
            span = self.span(chunk)
            self.settle(chunk)
            moved = fixed - self.fixed[span]
            before = self._followed.get(chunk)
            self._followed[chunk] = moved if before is None else before + moved
            self._place(chunk, slice(None), fixed)
        return fixed is not None

    def conclude(self, chunk: int, *, back: bool) -> None:
        """As in `Ledger`, and exact; taken back, v is what it was, for what nobody was told of is nowhere else."""
        moved = self._followed.pop(chunk, None)
        if moved is not None and back:
            self.add(chunk, slice(None), -moved)
        elif moved is not None:
            self.v[self.span(chunk)] = 0.0
            self._no_lead(chunk)
            self._place(chunk, slice(None), self.fixed[self.span(chunk)])

    def _unpacked(self, chunk: int, payload: Buffer, digest: bytes) -> Integers | None:
        span = self.span(chunk)
        fixed = unpack(payload, span.stop - span.start)
        return fixed if fixed is not None and fixed_hash(fixed) == digest else None
