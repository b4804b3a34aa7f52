"""Kernels of codes and checks: round an anchor to the grid, pack its low bits, and compare the two sides.

The grid index of a parameter is the stochastic rounding (Moniqua, Lu & De Sa 2020, arXiv 2002.11787)

    u = floor((round(2^16 a / s) + xi) / 2^16),   xi uniform on 0 .. 2^16 - 1

in fixed point. An integer a/s is hit exactly, and the mean over xi is a/s to 2^-17. Adding 1.5 * 2^52 turns the rounded
double into an integer without a conversion instruction, which AVX2 lacks. `capture` keeps |a/s| < 2^34. Where |a/s| <
2^15, 32 bits hold the sum, and twice as many fit a vector register.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from gossipdp.codecs.base import Vector
from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.compiled import kernel

__all__ = [
    "coefficients",
    "encode",
    "encode_rows",
    "recompute",
    "unpack_rows",
    "verdict",
    "verdict_rows",
]

Bytes = NDArray[np.uint8]
Checks = NDArray[np.uint16]
Indices = NDArray[np.int64]
Doubles = NDArray[np.float64]

SHIFTER: Final = 1.5 * 2.0**52
SHIFTER_BITS: Final = 0x4338_0000_0000_0000
NARROW: Final = 2.0**31 - 2.0**16
"""|2^16 a/s| below which 2^16 a/s + xi fits 32 bits with its sign"""
_STRIDE: Final = 0x9E37_79B9
_COUNTERS: Final = (np.arange(BLOCK // 2, dtype=np.uint64) * _STRIDE).astype(np.uint32)
"""counters of the random hash, spread over 32 bits"""
_BLOCK_STRIDE: Final = np.uint32(BLOCK // 2 * _STRIDE & 0xFFFF_FFFF)


def _bitcast(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(numba.types.uint64))

    return numba.types.uint64(numba.types.float64), generate


def _shift_right(typing_context: Any, value: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.lshr(*arguments)

    return value(value, value), generate


def _shift_left(typing_context: Any, value: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.shl(*arguments)

    return value(value, value), generate


def _shift_signed(typing_context: Any, value: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ashr(*arguments)

    return value(value, value), generate


def _truncate(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.trunc(arguments[0], context.get_value_type(numba.types.int32))

    return numba.types.int32(numba.types.uint64), generate


_bits: Any = intrinsic(_bitcast)
"""the 64 bits of a double as an integer"""
_low: Any = intrinsic(_truncate)
"""the low 32 bits of an integer, with a sign"""
_shr: Any = intrinsic(_shift_right)
_shl: Any = intrinsic(_shift_left)
_sar: Any = intrinsic(_shift_signed)
"""shifts, the last one of signed numbers, in the type of the value; numba's own widen to 64 bits, which costs lanes"""


@kernel
def _hash(counter: np.uint32, high: np.uint32) -> np.uint32:
    """32 random bits, which give two xi: Wellons' lowbias32 of counter + low, keyed with `high` in the middle."""
    x = np.uint32(counter)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB_352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) + high)
    x = np.uint32(x * np.uint32(0x846C_A68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@kernel
def _fixed(a: np.float32, scale: np.float64, xi: np.uint32) -> np.uint64:
    """2^16 a/s + xi in two's complement, plus SHIFTER_BITS. Bits 16 and up are those of u."""
    return np.uint64(_bits(np.float64(a) * scale + SHIFTER) + np.uint64(xi))


@kernel
def _narrow(a: np.float32, scale: np.float64, xi: np.uint32) -> np.int32:
    """u, the same as from `_fixed`, where |a| scale < NARROW."""
    rounded = _low(_bits(np.float64(a) * scale + SHIFTER))
    return np.int32(_sar(np.int32(rounded + np.int32(xi)), np.int32(16)))


@kernel
def _pack(fields: NDArray[np.uint32], count: int, width: int, out: Bytes, at: int) -> None:
    """Pack the low `width` bits of `count` fields into count * width / 8 bytes, in planes of 8, 4, 2 and 1 bits.

    The fields of one byte are count / (fields in a byte) apart, so that every loop vectorises. count: a multiple of 8.
    """
    done, half, quarter, eighth = 0, count >> 1, count >> 2, count >> 3
    while width - done >= 8:
        plane, shift = out[at : at + count], np.uint32(done)
        for k in range(count):
            plane[k] = np.uint8(_shr(fields[k], shift))
        at, done = at + count, done + 8
    if (width - done) & 4:
        plane, shift, upper = out[at : at + half], np.uint32(done), fields[half:]
        for k in range(half):
            low = _shr(fields[k], shift) & np.uint32(15)
            plane[k] = np.uint8(low | np.uint32(_shr(upper[k], shift) << np.uint32(4)))
        at, done = at + half, done + 4
    if (width - done) & 2:
        plane, shift = out[at : at + quarter], np.uint32(done)
        for k in range(quarter):
            byte = np.uint32(0)
            for part in range(4):
                byte |= np.uint32((_shr(fields[k + quarter * part], shift) & np.uint32(3)) << np.uint32(2 * part))
            plane[k] = np.uint8(byte)
        at, done = at + quarter, done + 2
    if (width - done) & 1:
        plane, shift = out[at : at + eighth], np.uint32(done)
        for k in range(eighth):
            byte = np.uint32(0)
            for part in range(8):
                byte |= np.uint32((_shr(fields[k + eighth * part], shift) & np.uint32(1)) << np.uint32(part))
            plane[k] = np.uint8(byte)


@kernel
def _unpack(codes: Bytes, at: int, count: int, width: int, fields: NDArray[np.uint16]) -> None:
    """The inverse of `_pack`, for widths of up to 16."""
    done, half, quarter, eighth = 0, count >> 1, count >> 2, count >> 3
    if width < 4:
        fields[:] = 0
    while width - done >= 8:
        plane, shift = codes[at : at + count], np.uint16(done)
        for k in range(count):
            field = np.uint16(plane[k])
            fields[k] = field if done == 0 else np.uint16(fields[k] | _shl(field, shift))
        at, done = at + count, done + 8
    if (width - done) & 4:
        plane, shift, upper = codes[at : at + half], np.uint16(done), fields[half:]
        for k in range(half if done == 0 else 0):
            fields[k], upper[k] = np.uint16(plane[k] & np.uint8(15)), np.uint16(plane[k] >> np.uint8(4))
        for k in range(0 if done == 0 else half):
            byte = np.uint16(plane[k])
            fields[k] |= _shl(np.uint16(byte & np.uint16(15)), shift)
            upper[k] |= _shl(np.uint16(byte >> np.uint16(4)), shift)
        at, done = at + half, done + 4
    if (width - done) & 2:
        plane, shift = codes[at : at + quarter], np.uint16(done)
        for part in range(4):
            for k in range(quarter):
                field = np.uint16(_shr(np.uint16(plane[k]), np.uint16(2 * part)) & np.uint16(3))
                fields[k + quarter * part] |= _shl(field, shift)
        at, done = at + quarter, done + 2
    if (width - done) & 1:
        plane, shift = codes[at : at + eighth], np.uint16(done)
        for part in range(8):
            for k in range(eighth):
                field = np.uint16(_shr(np.uint16(plane[k]), np.uint16(part)) & np.uint16(1))
                fields[k + eighth * part] |= _shl(field, shift)


@kernel
def coefficients(low: np.uint32, high: np.uint32) -> Checks:
    """Draw the coefficients of a chunk's checks from its seed. They are part of the wire format.

    Each exchange draws others, so it may catch a wrong block that the exchange before missed. They are odd, and no two
    are equal or opposite. A check therefore always catches up to three parameters that are wrong by one wrap each, and
    one parameter unless it is wrong by a multiple of 2^16 wraps.

    Returns:
        Shape (256,).
    """
    drawn, taken = np.empty(256, np.uint16), np.zeros(1 << 15, np.uint8)
    state, count = (np.uint64(high) << np.uint64(32)) | np.uint64(low), 0
    while count < 256:  # SplitMix64 (Steele, Lea & Flood 2014)
        state = np.uint64(state + np.uint64(0x9E37_79B9_7F4A_7C15))
        z = np.uint64((state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9))
        z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB))
        odd = np.int64((z ^ (z >> np.uint64(31))) & np.uint64(0xFFFF)) | 1
        size = min(odd, 0x1_0000 - odd)
        if not taken[size]:
            drawn[count], taken[size] = odd, 1
            count += 1
    return drawn


@kernel
def encode(
    copy: Vector,
    largest: Vector,
    scale: Doubles,
    low: np.uint32,
    high: np.uint32,
    bits: int,
    coefs: Checks,
    starts: Indices,
    places: Indices,
    codes: Bytes,
    checks: Checks,
) -> None:
    """Write the low `bits` bits of every u, and the upper 16 bits of each block's check.

    The check is C = sum_k coef_k u_k mod 2^(16 + bits). With u = code + 2^bits w the codes give its low bits, so only
    sum_k coef_k w_k mod 2^16 is sent. A short block counts as one of 256 with zeros behind it, which have u = 0.

    Args:
        copy: the chunk, shape (n,).
        largest: |copy|_inf of each block, shape (blocks,).
        scale: 2^16 / s of each block, shape (blocks,).
        low, high: the two halves of the seed.
        starts: first parameter of each block, then n; shape (blocks + 1,).
        places: number of codes before each block, then their total; shape (blocks + 1,).
        codes: out, bits / 8 bytes a code.
        checks: out, shape (blocks,).
    """
    fields, shift, coef = np.empty(256, np.uint32), np.uint32(bits), coefs.astype(np.uint32)
    signed, short = fields.view(np.int32), np.empty(256, np.float32)
    for block in range(len(scale)):
        base, factor = starts[block], scale[block]
        size, count = starts[block + 1] - base, places[block + 1] - places[block]
        if size == 256:
            values = copy[base : base + 256]
        else:
            values = short
            values[:size] = copy[base : base + size]
            values[size:] = np.float32(0.0)
        offset = np.uint32(np.uint32(block) * _BLOCK_STRIDE + low)
        if np.float64(largest[block]) * factor < NARROW:
            for k in range(128):
                xi = _hash(np.uint32(_COUNTERS[k] + offset), high)
                signed[k] = _narrow(values[k], factor, np.uint32(xi & np.uint32(0xFFFF)))
                signed[k + 128] = _narrow(values[128 + k], factor, _shr(xi, np.uint32(16)))
        else:
            for k in range(128):
                xi = _hash(np.uint32(_COUNTERS[k] + offset), high)
                first = _fixed(values[k], factor, np.uint32(xi & np.uint32(0xFFFF)))
                second = _fixed(values[128 + k], factor, np.uint32(xi >> np.uint32(16)))
                fields[k] = np.uint32(first >> np.uint64(16))
                fields[k + 128] = np.uint32(second >> np.uint64(16))
        check = np.uint32(0)
        for k in range(256):
            check = np.uint32(check + np.uint32(coef[k] * _shr(fields[k], shift)))
        checks[block] = np.uint16(check)
        if count == 256:
            _pack(fields, 256, bits, codes, places[block] * bits >> 3)
        else:
            _pack(fields, count, bits, codes, places[block] * bits >> 3)


@kernel
def verdict(
    high: Bytes,
    high_checks: Checks,
    low: Bytes,
    low_checks: Checks,
    bits: int,
    coefs: Checks,
    starts: Indices,
    places: Indices,
    differences: NDArray[np.int16],
    failed: Bytes,
    squares: NDArray[np.int64],
    largest: NDArray[np.int32],
) -> int:
    """Compute d = cmod(u_high - u_low, 2^bits), and for each block whether the checks agree, sum d^2 and max |d|.

    Both sides call this with the same arguments, so both reach the same verdict.

    Args:
        high, low: codes of the peer with the higher and with the lower id.
        starts, places: as of `encode`.
        differences: out, d of every parameter, shape (n,).
        failed: out, 1 for each block whose checks disagree.

    Returns:
        The number of failed blocks.
    """
    above, below, coef = np.empty(256, np.uint16), np.empty(256, np.uint16), coefs.view(np.int16)
    half, mask = np.int16(1 << (bits - 1)), np.int16((1 << bits) - 1)
    failures, short = 0, np.empty(256, np.int16)
    for block in range(len(failed)):
        base = starts[block]
        size, count = starts[block + 1] - base, places[block + 1] - places[block]
        if count == 256:
            _unpack(high, places[block] * bits >> 3, 256, bits, above)
            _unpack(low, places[block] * bits >> 3, 256, bits, below)
        else:
            _unpack(high, places[block] * bits >> 3, count, bits, above)
            _unpack(low, places[block] * bits >> 3, count, bits, below)
        above[size:] = below[size:] = 0
        d = differences[base : base + 256] if size == 256 else short
        check, least, most = np.int16(0), np.int16(0), np.int16(0)
        for k in range(256):
            e = np.int16(above[k] - below[k])
            d[k] = np.int16(np.int16(np.int16(e + half) & mask) - half)
            # d = e + 2^bits * wraps, but e may not fit 16 bits. The borrow and the sign give the wraps.
            wraps = np.int16(np.int16(above[k] < below[k]) - np.int16(d[k] < 0))
            check = np.int16(check + np.int16(coef[k] * wraps))
            least = least if least < d[k] else d[k]
            most = most if most > d[k] else d[k]
        wanted = np.uint16(np.uint16(high_checks[block]) - np.uint16(low_checks[block]))
        failed[block] = np.uint8(np.uint16(check) != wanted)
        failures += failed[block]
        largest[block] = max(np.int32(most), -np.int32(least))
        if bits <= 12:
            narrow = np.int32(0)
            for k in range(256):
                narrow = np.int32(narrow + np.int32(np.int32(d[k]) * np.int32(d[k])))
            squares[block] = narrow
        else:
            long = np.int64(0)
            for k in range(256):
                long += np.int64(d[k]) * np.int64(d[k])
            squares[block] = long
        if size != 256:
            differences[base : base + size] = short[:size]
    return failures


@kernel
def recompute(
    copy: Vector,
    scale: Doubles,
    starts: Indices,
    blocks: Indices,
    low: np.uint32,
    high: np.uint32,
    rows: Indices,
    u: NDArray[np.int64],
) -> None:
    """Compute u of some blocks in full, exactly as `encode` did.

    Args:
        starts: first parameter of each block in `copy`, then n.
        blocks: which blocks.
        rows: first parameter of each of them in `u`, then their total; shape (len(blocks) + 1,).
        u: out, one block after another.
    """
    for row in range(len(blocks)):
        base, factor, first = starts[blocks[row]], scale[blocks[row]], rows[row]
        offset = np.uint32(np.uint32(blocks[row]) * _BLOCK_STRIDE + low)
        for k in range(rows[row + 1] - first):
            xi = _hash(np.uint32(_COUNTERS[k & 127] + offset), high)
            part = np.uint32(xi & np.uint32(0xFFFF)) if k < 128 else np.uint32(xi >> np.uint32(16))
            fixed = _fixed(copy[base + k], factor, part)
            u[first + k] = np.int64(fixed - np.uint64(SHIFTER_BITS)) >> 16


@kernel
def encode_rows(
    u: NDArray[np.int64],
    shift: int,
    width: int,
    coefs: Checks,
    rows: Indices,
    places: Indices,
    codes: Bytes,
    checks: Checks,
) -> None:
    """Write the bits shift .. shift + width of every u, and the checks over all bits below shift + width.

    Args:
        rows: first parameter of each block in `u`, then their total.
        places: number of codes before each block, then their total.
    """
    fields, coef = np.empty(256, np.uint32), coefs.astype(np.uint32)
    for row in range(len(checks)):
        check, first = np.uint32(0), rows[row]
        fields[:] = np.uint32(0)
        for k in range(rows[row + 1] - first):
            fields[k] = np.uint32(u[first + k] >> shift)
            check = np.uint32(check + np.uint32(coef[k] * _shr(fields[k], np.uint32(width))))
        checks[row] = np.uint16(check)
        _pack(fields, places[row + 1] - places[row], width, codes, places[row] * width >> 3)


@kernel
def unpack_rows(
    codes: Bytes, places: Indices, blocks: Indices, width: int, rows: Indices, known: NDArray[np.int64]
) -> None:
    """Unpack the codes of some blocks into `known`, one block after another.

    Args:
        places: number of codes before each block in `codes`, then their total.
        blocks: which blocks.
        rows: first parameter of each of them in `known`, then their total.
    """
    fields = np.empty(256, np.uint16)
    for row in range(len(blocks)):
        place, first = places[blocks[row]], rows[row]
        _unpack(codes, place * width >> 3, places[blocks[row] + 1] - place, width, fields)
        for k in range(rows[row + 1] - first):
            known[first + k] = fields[k]


@kernel
def verdict_rows(
    high: NDArray[np.int64],
    high_checks: Checks,
    low: NDArray[np.int64],
    low_checks: Checks,
    bits: int,
    coefs: Checks,
    rows: Indices,
    failed: Bytes,
    d: NDArray[np.int64],
) -> None:
    """`verdict` for escalated blocks. `high` and `low` hold the low `bits` bits of u; higher bits are ignored."""
    half, mask, coef = np.int64(1) << (bits - 1), (np.int64(1) << bits) - 1, coefs.astype(np.uint32)
    for row in range(len(failed)):
        check, first = np.uint32(0), rows[row]
        for k in range(rows[row + 1] - first):
            e = (high[first + k] & mask) - (low[first + k] & mask)
            d[first + k] = ((e + half) & mask) - half
            check = np.uint32(check + np.uint32(coef[k] * np.uint32((d[first + k] - e) >> bits)))
        wanted = np.uint16(np.uint16(high_checks[row]) - np.uint16(low_checks[row]))
        failed[row] = np.uint8(np.uint16(check) != wanted)
