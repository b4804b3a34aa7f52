"""The interface of a codec: two peers learn the same difference of one chunk of their anchors.

Each side opens one `ChunkCodec`. The sides take turns (see `protocol.pairwise.exchange`): ranges, then codes, then
escalations of the blocks whose check failed. When both are complete they hold the *same* numbers with opposite sign, in
spite of rounding. Mixing is therefore antisymmetric, and the sum of two anchors never changes (algorithms section 2).
Nothing here may know peers, exchanges or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.blocks import Blocks

Vector: TypeAlias = NDArray[np.float32]
Buffer: TypeAlias = bytes | bytearray | memoryview


class PayloadError(ValueError):
    """The sender's buffers have the wrong number, length or content. Nothing was applied."""


class ChunkCodec(Protocol):
    """One side of an open chunk of n parameters."""

    complete: bool
    """every block of delta is known exactly"""
    blocks: int
    """number of blocks"""
    escalated: int
    """number of blocks whose first check failed"""
    escalation_bytes: int
    """bytes received for escalated blocks, which `bytes_per_parameter` does not count"""

    def ranges(self) -> list[Buffer]:
        """The own predicted ranges: one buffer with one byte for each block, or empty if the codec needs none."""

    def open(self, ranges: Buffer) -> None:
        """Take the partner's ranges, and fix the grid.

        Raises:
            PayloadError: the buffer has another length than the own ranges.
        """

    def emit(self) -> list[Buffer]:
        """All buffers that the partner is known to lack, or []. Call it after `open` and after each `absorb`."""

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        """Take the buffers that the partner emitted.

        Raises:
            PayloadError: they are malformed, or a check still fails although u is known in full.
            RuntimeError: the chunk is not open.
        """

    def norm2(self) -> float:
        """||delta||^2 in fp64. Needs `complete`, else raises RuntimeError."""

    def step2(self) -> float:
        """Squared length of a vector that has the grid step of its block at each parameter; 0 where there is no grid.

        A delta much shorter than that may read as 0. Needs `open`, else raises RuntimeError.
        """

    def mix(self, share: float, a: Vector, pending: Vector, v: Vector | None, pull: float) -> Vector:
        """a += share * delta; pending += share * delta; v -= pull * share * delta if v is given.

        delta points from the own anchor to the partner's. Needs `complete`, else raises RuntimeError.

        Args:
            a, pending, v: the chunk's vectors, shape (n,) each; changed in place.

        Returns:
            |delta|_inf of each block, shape (blocks,).
        """


class Codec(Protocol):
    """A two-sided format of chunks. A codec has no state and is shared."""

    name: str
    """the key in the registry; both peers must know it"""
    fineness: int
    """order of the codecs from coarse to fine; an exchange uses the finer of two wishes"""
    bytes_per_parameter: float
    """bytes that one side sends for a parameter of a whole block, without escalations"""

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
        """Open one side of a chunk.

        Args:
            a: the own anchor's chunk, shape (n,). The codec copies what it needs later, because the anchor may move.
            predicted: own predicted range of each block, shape (blocks,), >= 0, in units of a parameter.
            blocks: the same on both sides; `Blocks.across(n)` if None.
            lower: whether this side has the lower peer id. It computes differences; the other side negates them.
            seed: 64 bits, the same on both sides, and another one for each chunk of each exchange. It gives the
                stochastic rounding and the coefficients of checks.
            limited: the same on both sides; the smaller of both ranges limits how coarse the grid of a block is.
        """


def array_of(buffer: Buffer, kind: str, count: int) -> NDArray[Any]:
    """A read-only array over a received buffer, without a copy. Raises PayloadError unless it holds `count` items."""
    wanted = count * np.dtype(kind).itemsize
    if memoryview(buffer).nbytes != wanted:
        raise PayloadError(f"{memoryview(buffer).nbytes} bytes, wanted {wanted}")
    array = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array
