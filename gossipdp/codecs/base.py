"""What a codec is: how two peers tell each other one chunk of their anchors so that both learn the same difference.

A codec opens one `ChunkCodec` a side. The sides talk in turns (protocol/exchange.py): ranges first, then codes,
then escalations of the blocks whose check failed. When both are complete, both hold the *same* numbers with
opposite sign, whatever was rounded: mixing is antisymmetric and the sum of two anchors never changes (algorithms
section 2). Nothing here may know about peers, exchanges or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""parameters that share one range"""

Vector: TypeAlias = NDArray[np.float32]
Buffer: TypeAlias = bytes | bytearray | memoryview


class PayloadError(ValueError):
    """The partner's buffers have the wrong number, length or content; nothing was applied."""


class ChunkCodec(Protocol):
    """One side's view of one open chunk of n parameters (n a multiple of 256, but for the last chunk of a model)."""

    complete: bool
    """every block of delta is known exactly"""
    blocks: int
    escalated: int
    """blocks whose first check failed"""
    escalation_bytes: int
    """received for them, beyond what `bytes_per_parameter` counts"""

    def ranges(self) -> list[Buffer]:
        """Own predicted ranges: one buffer, one byte a block, or an empty buffer where the codec needs none."""

    def open(self, ranges: Buffer) -> None:
        """Take in the partner's ranges; fixes the grid. Raises PayloadError."""

    def emit(self) -> list[Buffer]:
        """Everything the partner lacks and I can already know it lacks; [] if nothing. Call after `open`/`absorb`."""

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        """Take in what the partner's `emit` gave. Raises PayloadError."""

    def norm2(self) -> float:
        """||delta||^2, fp64; needs `complete`."""

    def mix(self, share: float, a: Vector, pending: Vector, v: Vector | None, pull: float) -> Vector:
        """a += share * delta; pending += share * delta; v -= pull * share * delta (when v is given).

        delta points from the own anchor to the partner's. Returns |delta|_inf of each block, shape (blocks,).
        """


class Codec(Protocol):
    """A way to encode chunks; stateless and shared."""

    name: str
    fineness: int
    """orders codecs from coarse to fine; of two wishes the finer is used"""
    bytes_per_parameter: float
    """payload and headers one side sends, without escalations"""

    def chunk(self, a: Vector, predicted: NDArray[np.float32], *, lower: bool, seed: int) -> ChunkCodec:
        """Open one side of a chunk.

        Args:
            a: the own anchor's chunk, shape (n,); copied where it is needed later, for it may move.
            predicted: own predicted range of each block, shape (ceil(n/256),), absolute units, >= 0.
            lower: this side has the lower peer id (it computes differences, the other negates).
            seed: 64 bits, the same on both sides and of this chunk of this exchange alone: of the stochastic rounding,
                and of the coefficients of checks.
        """


def array_of(buffer: Buffer, kind: str, count: int) -> NDArray[Any]:
    """A read-only array over a partner's buffer, without a copy. Raises PayloadError unless it holds `count` items."""
    wanted = count * np.dtype(kind).itemsize
    if memoryview(buffer).nbytes != wanted:
        raise PayloadError(f"{memoryview(buffer).nbytes} bytes, wanted {wanted}")
    array = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array
