"""The hot loops of the sparse compressors: choose the largest of a chunk, quantise to two levels, pack and unpack.

They run on one thread, without the GIL, on arrays that the caller has measured. They raise nothing. No kernel uses
fast-math, because receivers must decode the same numbers, bit for bit.

A chunk is `CHUNK` parameters; the last may be shorter. A chosen parameter is a field of 14 bits

    index << 2 | negative << 1 | high        index 0 .. 4095, strictly ascending within its chunk

in a little-endian bit stream. Each chunk starts at a byte of its own, and the rest of its last byte is zero. A set of
chosen values has exactly one encoding: the high level occurs only beside the low one, and zero has no sign.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.compiled import kernel

__all__ = ["CHUNK", "FIELD", "LARGEST", "choose_chunks", "place_chunks", "rotate", "sealed"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Indices = NDArray[np.int64]

CHUNK: Final = 4096
"""parameters that share two levels; an index of 12 bits names each"""
FIELD: Final = 14
"""bits of one chosen parameter"""
LARGEST: Final = np.float32(2.0**100)
"""largest magnitude of a value: senders cut to it and receivers refuse more, so that no later product overflows"""
_LARGEST_BITS: Final = np.uint32(LARGEST.view(np.uint32))
_ROUNDS: Final = 16
"""most iterations of Lloyd's algorithm; it nearly always converges after three to six"""


@kernel
def _smallest_chosen(keys: Words, k: int, counts: Indices) -> tuple[np.int64, np.int64]:
    """The k-th largest key, and the number of equal keys among the k. A radix select of 11 + 10 + 10 bits."""
    known, wanted, shift, width = np.int64(0), np.int64(k), 20, 11
    while True:
        bins = 1 << width
        counts[:bins] = 0
        above = known >> (shift + width)
        for i in range(len(keys)):
            key = np.int64(keys[i])
            if key >> (shift + width) == above:
                counts[(key >> shift) & (bins - 1)] += 1
        bin = bins - 1
        while counts[bin] < wanted:
            wanted -= counts[bin]
            bin -= 1
        known |= bin << shift
        if shift == 0:
            return known, wanted
        shift, width = shift - 10, 10


@kernel
def _lloyd(magnitudes: Vector, count: int, total: float, cut: float) -> tuple[float, float, float]:
    """(low, high, gain) of two-means that starts with `cut` (Lloyd 1982). The error is sum m^2 - gain."""
    low, high, gain = 0.0, 0.0, -1.0
    for _ in range(_ROUNDS):
        upper, many = np.float64(0.0), 0
        for i in range(count):
            # A selection of values, not a branch: no processor could predict it.
            above = magnitudes[i] > cut
            upper += magnitudes[i] if above else np.float32(0.0)
            many += above
        if many == 0 or many == count:
            break
        low, high = (total - upper) / (count - many), upper / many
        gain = (total - upper) * low + upper * high
        middle = 0.5 * (low + high)
        if middle == cut:
            break
        cut = middle
    return max(low, 0.0), high, gain


@kernel
def _two_levels(magnitudes: Vector, count: int) -> tuple[float, float]:
    """The better of two runs of two-means: one starts at the mean, one at the middle between least and largest.

    The mean splits the bulk, and the middle separates outliers. The error is within 1 % of the least one; one start
    alone is up to 20 % above it. Both levels are equal if all magnitudes are.
    """
    total, largest, smallest = 0.0, np.float32(0.0), np.float32(np.inf)
    for i in range(count):
        total += magnitudes[i]
        largest, smallest = max(largest, magnitudes[i]), min(smallest, magnitudes[i])
    if largest == smallest:
        return float(smallest), float(smallest)
    low, high, gain = _lloyd(magnitudes, count, total, total / count)
    other_low, other_high, other_gain = _lloyd(magnitudes, count, total, 0.5 * (float(smallest) + float(largest)))
    if other_gain > gain:
        return other_low, other_high
    if gain < 0.0:
        # No cut separates them in fp64: one level is as good.
        return total / count, total / count
    return low, high


@kernel
def _bf16(value: float, cell: Vector, word: Words) -> np.int64:
    """The 16 bits of the nearest bfloat16, ties to even. `word` is a view of `cell`."""
    cell[0] = value
    bits = np.int64(word[0])
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@kernel
def _levels(magnitudes: Vector, count: int, cell: Vector, word: Words) -> tuple[np.int64, np.int64, float]:
    """(low, high, cut): both levels as bfloat16, and the magnitude above which a value has the high level."""
    low, high = _two_levels(magnitudes, count)
    low16, high16 = _bf16(low, cell, word), _bf16(high, cell, word)
    cut = 0.5 * (low + high)
    upper = 0
    for i in range(count):
        upper += magnitudes[i] > cut
    if low16 == high16 or upper == 0 or upper == count:
        return high16, high16, np.inf
    return low16, high16, cut


@kernel
def choose_chunks(
    values: Vector, words: Words, counts: Indices, offsets: Indices, levels: NDArray[np.uint16], codes: Bytes
) -> None:
    """Write the counts[c] largest magnitudes of each chunk c to codes[offsets[c] :]. Of equal ones the first are
    chosen.

    Args:
        values: shape (n,), fp32.
        words: the bits of `values`.
        counts, offsets: shape (chunks,).
        levels: out, shape (chunks, 2), low and high as bfloat16.
        codes: out.
    """
    keys, bins = np.empty(4096, np.uint32), np.empty(2048, np.int64)
    chosen, magnitudes = np.empty(4096, np.int64), np.empty(4096, np.float32)
    cell = np.empty(1, np.float32)
    word = cell.view(np.uint32)
    for chunk in range(len(counts)):
        base, count = chunk * 4096, counts[chunk]
        size = min(4096, len(values) - base)
        for i in range(size):
            key = words[base + i] & np.uint32(0x7FFF_FFFF)
            # Keys above infinity are NaN, which counts as zero.
            keys[i] = np.uint32(0) if key > np.uint32(0x7F80_0000) else min(key, _LARGEST_BITS)
        bound, ties = _smallest_chosen(keys[:size], count, bins)
        found = 0
        for i in range(size):
            key = np.int64(keys[i])
            if key >= bound:
                if key == bound:
                    if ties == 0:
                        continue
                    ties -= 1
                chosen[found] = i
                word[0] = keys[i]
                magnitudes[found] = cell[0]
                found += 1
        low, high, cut = _levels(magnitudes, count, cell, word)
        levels[chunk, 0], levels[chunk, 1] = low, high
        held, bits, at = np.int64(0), 0, offsets[chunk]
        for n in range(count):
            upper = magnitudes[n] > cut
            negative = values[base + chosen[n]] < 0.0 and (low != 0 or upper)
            held |= (chosen[n] << 2 | np.int64(negative) << 1 | np.int64(upper)) << bits
            bits += 14
            while bits >= 8:
                codes[at] = held & 0xFF
                held, bits, at = held >> 8, bits - 8, at + 1
        if bits:
            codes[at] = held


@kernel
def place_chunks(codes: Bytes, counts: Indices, offsets: Indices, levels: Vector, values: Vector) -> int:
    """The inverse of `choose_chunks`, into zeros.

    Args:
        levels: shape (chunks, 2), fp32.
        values: out, shape (n,), all zero.

    Returns:
        The index of the first chunk with codes that no encoder writes, or len(counts) if all are sound.
    """
    for chunk in range(len(counts)):
        base, count, low, high = chunk * 4096, counts[chunk], levels[chunk, 0], levels[chunk, 1]
        size = min(4096, len(values) - base)
        held, bits, at, before, uppers = np.int64(0), 0, offsets[chunk], np.int64(-1), np.int64(0)
        for _ in range(count):
            while bits < 14:
                held |= np.int64(codes[at]) << bits
                bits, at = bits + 8, at + 1
            index, negative, upper = (held >> 2) & 0xFFF, (held >> 1) & 1, held & 1
            held, bits = held >> 14, bits - 14
            level = high if upper else low
            if index <= before or index >= size or (negative and level == 0.0):
                return chunk
            before, uppers = index, uppers + upper
            values[base + index] = -level if negative else level
        both = 0 < uppers < count
        if held or both != (low < high):
            return chunk
        if uppers and not both:
            return chunk
    return len(counts)


@kernel
def _product(left: Vector, right: Vector, product: Vector) -> None:
    """product = left @ right, 64 x 64 each. It skips zeros of `left`, which is sparse after a top-k."""
    for i in range(64):
        row = product[i]
        row[:] = 0.0
        # Four terms for one load and store of the sum, added one after the other.
        for k in range(0, 64, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
                for j in range(64):
                    total = row[j] + a * right[k, j]
                    total = total + b * right[k + 1, j]
                    total = total + c * right[k + 2, j]
                    row[j] = total + d * right[k + 3, j]


@kernel
def rotate(chunks: Vector, left: Vector, right: Vector, rotated: Vector) -> None:
    """rotated[c] = left @ chunks[c] @ right. Each sum runs from the first term to the last, on every machine.

    Args:
        chunks: shape (chunks, 64, 64).
        rotated: out, shape (chunks, 64, 64).
    """
    half = np.empty((64, 64), np.float32)
    for chunk in range(len(chunks)):
        _product(chunks[chunk], right, half)
        _product(left, half, rotated[chunk])


def sealed(array: NDArray[Any]) -> Any:
    """A contiguous read-only view. All callers then pass one array type, and no kernel compiles twice."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
