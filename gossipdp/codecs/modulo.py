"""Modulo codecs: send only the low bits of an anchor; the partner's own anchor supplies the high bits.

Two anchors are close, so the difference of their grid indices u fits a few bits, and

    d = cmod(u_high - u_low, 2^bits)

recovers it exactly if |u_high - u_low| < 2^(bits - 1) (Moniqua, Lu & De Sa 2020, arXiv 2002.11787). `high` and `low`
are the two peers by id. One linear 16-bit check for each block tells whether d is right. Blocks that fail are
escalated: both sides send higher bits of the same u, never a new rounding, until the check passes. It must pass once u
is known in full. Both sides compute the same d from the same bytes, and each scales it by its own sign. The deltas are
therefore opposite to the last bit.

The larger of both ranges sets the grid of a block, but the smaller one limits it: a range that one side claims makes
the grid no coarser than `NEAR` steps of range above the other's. A difference beyond it escalates. Ranges further apart
than any grid can serve are those of a block that one side never moved, or a lie. Both sides then send its fp32 values.

Both sides must use the *same* seed, and another one for each chunk of each exchange. The seed gives the rounding, so
that |delta - (y_j - y_i)| < s and equal anchors give exactly zero. It also gives the coefficients of the checks, so
that the next exchange may catch an error that this one missed.

Nothing here may know peers or exchanges, or hold a loop over parameters (see `kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import kernels
from gossipdp.codecs.base import Buffer, ChunkCodec, PayloadError, Vector, array_of
from gossipdp.codecs.blocks import BLOCK, Blocks
from gossipdp.codecs.kernels.anchor import LARGEST

__all__ = ["ModuloCodec", "grid_levels"]

SAFETY: Final = 1.0
"""q: half the width of the grid, in units of the larger predicted range"""
_OCTAVE: Final = (1.0905077326652577, 1.2968395546510096, 1.5422108254079407, 1.8340080864093424)
"""2^(n/4 + 1/8), as literals, so that every host has the same bits. The eighth keeps steps away from powers of two:
anchors exactly 1.0 apart on a step of 2^-20 would differ by a multiple of the check's modulus"""
RANGES: Final = np.array([np.ldexp(_OCTAVE[level % 4], level // 4 - 32) for level in range(256)])
"""the range of each range byte, 2^-31.9 to 2^31.9"""
ESCALATIONS: Final = (4, 16, 16)
"""higher bits of stages 1, 2 and 3. With at least 2 bits of stage 0 they make 38, and u_high - u_low fits 36"""
NEAR: Final = 12
"""levels of range by which the grid may be coarser than the smaller range asks for: a factor of 8"""
DEEP: Final = 28
"""levels of range by which the grid may be finer than the larger range asks for: a factor of 128"""


_Narrow: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.int8]]
"""low 32 bits, and the rest"""


class ModuloCodec:
    """`modulo<bits>`, with 2 to 16 bits for a parameter. `[exchange] bits` selects one."""

    def __init__(self, bits: int) -> None:
        if not 2 <= bits <= 16:
            raise ValueError(f"{bits} bits, allowed 2 to 16")
        self.name = f"modulo{bits}"
        self.bits = bits
        self.fineness = 10 * bits + 5
        self.bytes_per_parameter = bits / 8 + 3 / BLOCK
        self.steps: NDArray[np.float64] = RANGES * (2.0 * SAFETY) / (2**bits - 2)
        """grid step s of each range byte, shape (256,)"""
        self.guard = (2**bits - 2) * 2.0 ** (DEEP / 4 - 34) / SAFETY
        """smallest range relative to |a|_inf for which |a/s| fits the 34 bits of `kernels` on the finest grid"""
        widths = (bits, *ESCALATIONS)
        self.stages = tuple((sum(widths[:stage]), width) for stage, width in enumerate(widths))
        """(shift, width) of the bits of u that each stage sends"""

    def chunk(
        self,
        a: Vector,
        predicted: NDArray[np.float32],
        blocks: Blocks | None = None,
        *,
        lower: bool,
        seed: int,
        limited: bool = False,
    ) -> ChunkCodec:
        return _ModuloChunk(self, a, predicted, blocks or Blocks.across(len(a)), lower, seed, limited)


def grid_levels(own: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The level of each block's grid, and which blocks need fp32. It is the same on both sides."""
    high, low = np.maximum(own, theirs), np.minimum(own, theirs)
    limit = low + np.minimum(np.uint8(NEAR), np.uint8(255) - low)
    level = np.minimum(high, limit)
    apart = high - level > DEEP
    return np.where(apart, high, level), apart


class _ModuloChunk:
    """One side of one chunk. Stages come strictly in order; `_failing` holds the blocks of the next one.

    Both sides reach the same verdict, so a stage is prepared as soon as its blocks are known. The partner can only send
    that stage next, and another length is the partner's fault.
    """

    def __init__(
        self,
        codec: ModuloCodec,
        a: Vector,
        predicted: NDArray[np.float32],
        blocks: Blocks,
        lower: bool,
        seed: int,
        limited: bool,
    ) -> None:
        self._codec, self._layout, self._lower, self._key = codec, blocks, lower, _key(seed)
        self._limited = limited
        self._coefs = kernels.coefficients(*self._key)
        self.blocks, self.escalated, self.complete = len(blocks), 0, False
        self.escalation_bytes = 0
        self._copy: Vector = np.empty(len(a), np.float32)
        self._levels: NDArray[np.uint8] = np.empty(self.blocks, np.uint8)
        self._highest: Vector = np.empty(self.blocks, np.float32)
        starts = blocks.starts
        kernels.capture(a, predicted, RANGES, codec.guard, starts, self._copy, self._highest, self._levels)
        self._outbox: list[Buffer] = []
        self._stage = -1
        self._rows: NDArray[np.int64] = np.full(self.blocks, -1, np.int64)
        self._wide: Vector = np.empty(0, np.float32)
        self._apart: NDArray[np.bool_] = np.zeros(self.blocks, np.bool_)
        self._values: Vector = np.empty(0, np.float32)
        self._deltas: Vector | None = None

    def ranges(self) -> list[Buffer]:
        return [self._levels.data]

    def open(self, ranges: Buffer) -> None:
        theirs = array_of(ranges, "u1", self.blocks)
        if self._stage >= 0:
            raise RuntimeError("chunk is open already")
        if self._limited:
            levels, self._apart = grid_levels(self._levels, theirs)
        else:
            levels = np.maximum(self._levels, theirs)
        step = self._codec.steps[levels]
        self._step, self._scale = step, 65536.0 / step
        layout, bits = self._layout, self._codec.bits
        codes, checks = _room(layout, bits)
        ends = layout.starts, layout.places
        kernels.encode(self._copy, self._highest, self._scale, *self._key, bits, self._coefs, *ends, codes, checks)
        if self._apart.any():
            self._values = self._copy[layout.spread(self._apart)]
            self._outbox += [self._values.astype("<f4", copy=False).data.cast("B"), b""]
        self._post(0, codes, checks)

    def emit(self) -> list[Buffer]:
        buffers, self._outbox = self._outbox, []
        return buffers

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        if self._stage < 0:
            raise RuntimeError("chunk is not open")
        if len(buffers) % 2:
            raise PayloadError(f"{len(buffers)} frames, wanted pairs")
        for codes, checks in zip(buffers[::2], buffers[1::2], strict=True):
            if self.complete:
                raise PayloadError("a stage that no block needs")
            if self._values.size and self._deltas is None:
                self._absorb_values(codes, checks)
            elif self._stage == 0:
                self._absorb_first(codes, checks)
            else:
                self._absorb_escalation(codes, checks)

    def norm2(self) -> float:
        if not self.complete:
            raise RuntimeError("delta is not known yet")
        narrow = float(np.dot(self._squares, self._step * self._step))
        return narrow + float(np.sum(np.square(self._wide, dtype=np.float64)))

    def step2(self) -> float:
        if self._stage < 0:
            raise RuntimeError("chunk is not open")
        return float(np.dot(self._layout.sizes[~self._apart], np.square(self._step[~self._apart])))

    def mix(self, share: float, a: Vector, pending: Vector, v: Vector | None, pull: float) -> Vector:
        if not self.complete:
            raise RuntimeError("delta is not known yet")
        scale = (self._step if self._lower else -self._step).astype(np.float32)
        momentum = a if v is None else v
        kernels.mix(
            self._differences,
            scale,
            self._layout.starts,
            self._rows,
            self._wide,
            float(share),
            float(pull),
            a,
            pending,
            momentum,
            v is not None,
        )
        largest: Vector = np.abs(scale) * self._largest.astype(np.float32)
        if self.escalated:
            escalated = self._rows >= 0  # in the order of `_wide`
            largest[escalated] = np.maximum.reduceat(np.abs(self._wide), self._rows[escalated])
        return largest

    # -- stages -----------------------------------------------------------------------------------------------

    def _post(self, stage: int, codes: NDArray[np.uint8], checks: NDArray[np.uint16]) -> None:
        """Queue the own part of `stage`, and keep it to compare with the partner's."""
        self._stage, self._codes, self._checks = stage, codes, checks
        self._outbox += [codes.data, checks.astype("<u2", copy=False).data.cast("B")]

    def _ordered(self, own: Any, theirs: Any) -> tuple[Any, Any]:
        """The same two values, those of the higher id first."""
        return (theirs, own) if self._lower else (own, theirs)

    def _absorb_values(self, values: Buffer, checks: Buffer) -> None:
        """The partner's values of the blocks whose ranges are too far apart."""
        theirs = array_of(values, "<f4", len(self._values)).astype(np.float32)
        array_of(checks, "u1", 0)
        if not np.all(np.abs(theirs) <= LARGEST):
            raise PayloadError("values beyond the network's grid")
        self.escalation_bytes += theirs.nbytes
        self._deltas = theirs - self._values if self._lower else -(self._values - theirs)

    def _absorb_first(self, codes: Buffer, checks: Buffer) -> None:
        bits = self._codec.bits
        theirs = array_of(codes, "u1", len(self._codes))
        their_checks = array_of(checks, "<u2", self.blocks).astype(np.uint16)
        own = self._codes.view()
        own.flags.writeable = False
        (high, low), (high_checks, low_checks) = self._ordered(own, theirs), self._ordered(self._checks, their_checks)
        layout = self._layout
        self._differences: NDArray[np.int16] = np.empty(layout.size, np.int16)
        self._largest: NDArray[np.int32] = np.empty(self.blocks, np.int32)
        squares, failed = np.empty(self.blocks, np.int64), np.empty(self.blocks, np.uint8)
        kernels.verdict(
            high,
            high_checks,
            low,
            low_checks,
            bits,
            self._coefs,
            layout.starts,
            layout.places,
            self._differences,
            failed,
            squares,
            self._largest,
        )
        copy = self._copy
        del self._copy  # the largest part of an open chunk, which may wait long for its partner
        self._squares: NDArray[np.float64] = squares.astype(np.float64)
        failing = np.flatnonzero((failed > 0) & ~self._apart)
        wide = np.flatnonzero((failed > 0) | self._apart)
        self.escalated, self.complete = len(wide), len(failing) == 0
        if self.escalated:
            self._widen(wide)
        if self.complete:
            return
        left = layout.take(failing)
        self._failing: NDArray[np.int64] = failing
        u: NDArray[np.int64] = np.empty(left.size, np.int64)
        known: NDArray[np.int64] = np.empty_like(u)
        kernels.recompute(copy, self._scale, layout.starts, failing, *self._key, left.starts, u)
        kernels.unpack_rows(theirs, layout.places, failing, bits, left.starts, known)
        self._escalate(left, u, known)

    def _widen(self, blocks: NDArray[np.int64]) -> None:
        """Make room for the deltas of these blocks, and fill in those that came as values."""
        wide = self._layout.take(blocks)
        self._squares[blocks] = 0.0
        self._rows[blocks] = wide.starts[:-1]
        self._wide = np.zeros(wide.size, np.float32)
        if self._deltas is not None:
            self._wide[wide.spread(self._apart[blocks])] = self._deltas

    def _absorb_escalation(self, codes: Buffer, checks: Buffer) -> None:
        shift, width = self._codec.stages[self._stage]
        left, rows = self._left, len(self._failing)
        theirs = array_of(codes, "u1", len(self._codes))
        their_checks = array_of(checks, "<u2", rows).astype(np.uint16)
        self.escalation_bytes += theirs.nbytes + their_checks.nbytes
        u, known = _widened(self._u), _widened(self._known)
        fields = np.empty_like(known)
        kernels.unpack_rows(theirs, left.places, np.arange(rows), width, left.starts, fields)
        known |= fields << shift
        (high, low), (high_checks, low_checks) = (
            self._ordered(u, known),
            self._ordered(self._checks, their_checks),
        )
        failed, d = np.empty(rows, np.uint8), np.empty_like(u)
        kernels.verdict_rows(high, high_checks, low, low_checks, shift + width, self._coefs, left.starts, failed, d)
        again = failed > 0
        again_in_u = left.spread(again)
        self._settle(self._failing[~again], d[~again_in_u])
        self.complete = not again.any()
        if self.complete:
            del self._u, self._known, self._left
        else:
            self._failing = self._failing[again]
            self._escalate(left.take(np.flatnonzero(again)), u[again_in_u], known[again_in_u])

    def _escalate(self, left: Blocks, u: NDArray[np.int64], known: NDArray[np.int64]) -> None:
        """Send more bits of `u`, the own values of the failing blocks.

        Args:
            left: the failing blocks, one after another.
            known: what the partner has told of its own.
        """
        stage = self._stage + 1
        if stage == len(self._codec.stages):
            raise PayloadError("the checks disagree although u is known in full")
        shift, width = self._codec.stages[stage]
        codes, checks = _room(left, width)
        kernels.encode_rows(u, shift, width, self._coefs, left.starts, left.places, codes, checks)
        self._left, self._u, self._known = left, _narrowed(u), _narrowed(known)
        self._post(stage, codes, checks)

    def _settle(self, blocks: NDArray[np.int64], d: NDArray[np.int64]) -> None:
        """d of these blocks is known, one after another."""
        step = self._step[blocks] if self._lower else -self._step[blocks]
        settled = self._layout.take(blocks)
        inside = np.arange(settled.size) - settled.spread(settled.starts[:-1])
        self._wide[settled.spread(self._rows[blocks]) + inside] = settled.spread(step) * d


def _room(blocks: Blocks, width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    return np.empty(blocks.codes * width // 8, np.uint8), np.empty(len(blocks), np.uint16)


def _narrowed(values: NDArray[np.int64]) -> _Narrow:
    """Integers of 40 bits in 5 bytes each. An open chunk may wait long for its partner, and many are open at once."""
    return values.astype(np.uint32), (values >> 32).astype(np.int8)


def _widened(values: _Narrow) -> NDArray[np.int64]:
    low, high = values
    wide: NDArray[np.int64] = high.astype(np.int64)
    wide <<= 32
    wide |= low
    return wide


def _key(seed: int) -> tuple[np.uint32, np.uint32]:
    return np.uint32(seed & 0xFFFF_FFFF), np.uint32(seed >> 32 & 0xFFFF_FFFF)
