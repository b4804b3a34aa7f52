"""Absolute codecs: each side sends its chunk in fp32, fp16 or bf16, and subtracts the two payloads.

Delta is the difference of the *payloads*, not of the unrounded anchors. Both sides therefore hold the same numbers in
spite of rounding (algorithms section 2). Nothing here may know peers or exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, ChunkCodec, PayloadError, Vector, array_of
from gossipdp.codecs.blocks import Blocks

__all__ = ["BF16", "FP16", "FP32", "DenseChunk", "DenseCodec", "finite"]

LARGEST: Final = np.float32(2.0**100)
"""largest magnitude of a delta; both sides cut to it, so that no later product overflows"""

Encode = Callable[[Vector, Blocks], list[Buffer]]
Decode = Callable[[Sequence[Buffer], Blocks], Vector]
"""(frames, blocks) -> values; raises PayloadError"""


class DenseChunk:
    """One side of a chunk that is sent whole in one turn."""

    escalated = escalation_bytes = 0

    def __init__(self, encode: Encode, decode: Decode, a: Vector, blocks: Blocks, lower: bool) -> None:
        self.blocks, self.complete, self._layout = len(blocks), False, blocks
        self._encode, self._decode, self._lower = encode, decode, lower
        self._a: Vector = a.copy()
        self._own: list[Buffer] = []
        self._outbox: list[Buffer] = []

    def ranges(self) -> list[Buffer]:
        return [b""]

    def open(self, ranges: Buffer) -> None:
        if memoryview(ranges).nbytes:
            raise PayloadError(f"{memoryview(ranges).nbytes} bytes of ranges, wanted none")
        self._own = self._encode(self._a, self._layout)
        self._outbox = list(self._own)

    def emit(self) -> list[Buffer]:
        buffers, self._outbox = self._outbox, []
        return buffers

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        if not self._own:
            raise RuntimeError("chunk is not open")
        if not buffers:
            return
        if self.complete:
            raise PayloadError("a chunk sent twice")
        own, theirs = self._decode(self._own, self._layout), self._decode(buffers, self._layout)
        high, low = (theirs, own) if self._lower else (own, theirs)
        with np.errstate(over="ignore"):
            delta = high - low
        np.clip(delta, -LARGEST, LARGEST, out=delta)
        self._delta: Vector = delta if self._lower else np.negative(delta, out=delta)
        self.complete = True

    def norm2(self) -> float:
        if not self.complete:
            raise RuntimeError("delta is not known yet")
        return float(np.sum(np.square(self._delta, dtype=np.float64)))

    def step2(self) -> float:
        return 0.0

    def mix(self, share: float, a: Vector, pending: Vector, v: Vector | None, pull: float) -> Vector:
        if not self.complete:
            raise RuntimeError("delta is not known yet")
        step = np.float32(share) * self._delta
        a += step
        pending += step
        if v is not None:
            v -= np.float32(pull) * step
        largest: Vector = np.maximum.reduceat(np.abs(self._delta), self._layout.starts[:-1])
        return largest


class DenseCodec:
    """A codec made of two functions: encode a chunk to frames, decode frames to a chunk."""

    def __init__(self, name: str, fineness: int, bytes_per_parameter: float, encode: Encode, decode: Decode) -> None:
        self.name, self.fineness, self.bytes_per_parameter = name, fineness, bytes_per_parameter
        self._encode, self._decode = encode, decode

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
        return DenseChunk(self._encode, self._decode, a, blocks or Blocks.across(len(a)), lower)


def _only(frames: Sequence[Buffer], kind: str, count: int) -> NDArray[Any]:
    if len(frames) != 1:
        raise PayloadError(f"{len(frames)} frames, wanted 1")
    return array_of(frames[0], kind, count)


def finite(values: Vector) -> Vector:
    """Return `values`. Raises PayloadError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise PayloadError("not finite")
    return values


def _encode_fp32(a: Vector, blocks: Blocks) -> list[Buffer]:
    return [a.astype("<f4", copy=False).data.cast("B")]


def _decode_fp32(frames: Sequence[Buffer], blocks: Blocks) -> Vector:
    return finite(_only(frames, "<f4", blocks.size).astype(np.float32))


def _encode_fp16(a: Vector, blocks: Blocks) -> list[Buffer]:
    largest = np.float32(np.finfo(np.float16).max)
    return [np.clip(a, -largest, largest).astype("<f2").data.cast("B")]


def _decode_fp16(frames: Sequence[Buffer], blocks: Blocks) -> Vector:
    return finite(_only(frames, "<f2", blocks.size).astype(np.float32))


def _encode_bf16(a: Vector, blocks: Blocks) -> list[Buffer]:
    """Round to nearest, ties to even. Values that would round to infinity become the largest bfloat16."""
    largest = np.uint32(0x7F7F_0000).view(np.float32)
    bits = np.clip(a, -largest, largest).view(np.uint32)
    bits = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return [bits.astype("<u2").data.cast("B")]


def _decode_bf16(frames: Sequence[Buffer], blocks: Blocks) -> Vector:
    bits = _only(frames, "<u2", blocks.size).astype(np.uint32) << np.uint32(16)
    return finite(bits.view(np.float32))


FP32: Final = DenseCodec("fp32", 320, 4.0, _encode_fp32, _decode_fp32)
FP16: Final = DenseCodec("fp16", 161, 2.0, _encode_fp16, _decode_fp16)
BF16: Final = DenseCodec("bf16", 160, 2.0, _encode_bf16, _decode_bf16)
