"""Wrappers of the exchange's codecs that are on trial: a rotation in front, and outliers sent exactly.

Both are for heavy tails: a block's grid is as wide as its largest difference, and so as coarse for all 256 of it. A
wrapper is a `ChunkCodec` on both sides alike, and keeps what one promises: opposite differences, equal verdicts.
Neither is in the product. Nothing here may know an algorithm, a replica or torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import BLOCK, Buffer, ChunkCodec, Codec, PayloadError, Vector, array_of
from gossipdp.codecs.dense import finite

__all__ = ["OutlierChunk", "RotatedChunk", "by_blocks", "rotated"]

_SIGNS: Final = np.random.default_rng(0x5349474E).choice([-1.0, 1.0], BLOCK)
"""of every block, the same for all peers: ranges are of rotated blocks, and last from one exchange to the next"""


def rotated(values: Vector) -> Vector:
    """D H D / 16 of each block of 256, with random signs D and the Walsh-Hadamard matrix H.

    Orthogonal and its own inverse: D D = I, H H = 256 I. Of additions alone (Fino & Algazi 1976), in fp64: every host
    finds the same, and rotated(-x) is -rotated(x) to the last bit. A last block that is short is filled with zeros.

    Returns:
        Shape (256 ceil(n / 256),).
    """
    blocks = -(-len(values) // BLOCK)
    rows: NDArray[np.float64] = by_blocks(values) * _SIGNS
    half = 1
    while half < BLOCK:
        pairs = rows.reshape(blocks, BLOCK // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack((first + second, first - second), 2).reshape(blocks, BLOCK)
        half *= 2
    turned: Vector = (rows * (_SIGNS / 16.0)).reshape(-1).astype(np.float32)
    return turned


def by_blocks(values: Vector) -> Vector:
    """A copy by blocks, shape (blocks, 256), filled with zeros."""
    rows: Vector = np.zeros(-(-len(values) // BLOCK) * BLOCK, np.float32)
    rows[: len(values)] = values
    return rows.reshape(-1, BLOCK)


class _Wrapper(ABC):
    """One side of a chunk whose codec is told something else than the anchor: a `ChunkCodec` around another."""

    def __init__(self, inner: ChunkCodec, size: int) -> None:
        self.inner, self.size = inner, size
        self._follow()

    def _follow(self) -> None:
        inner = self.inner
        self.complete, self.blocks = inner.complete, inner.blocks
        self.escalated, self.escalation_bytes = inner.escalated, inner.escalation_bytes

    def ranges(self) -> list[Buffer]:
        return self.inner.ranges()

    def open(self, ranges: Buffer) -> None:
        self.inner.open(ranges)

    def emit(self) -> list[Buffer]:
        return self.inner.emit()

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        self.inner.absorb(buffers)
        self._follow()

    def norm2(self) -> float:
        return self.inner.norm2()

    @abstractmethod
    def delta(self) -> tuple[Vector, Vector]:
        """To the partner's anchor, shape (n,), opposite on the other side to the last bit; and the largest value that
        the grid of each block has to reach, shape (blocks,)."""

    def mix(self, share: float, a: Vector, pending: Vector, v: Vector | None, pull: float) -> Vector:
        delta, largest = self.delta()
        step = np.float32(share) * delta
        a += step
        pending += step
        if v is not None:
            v -= np.float32(pull) * step
        return largest

    def _inner_delta(self, size: int) -> tuple[Vector, Vector]:
        found: Vector = np.zeros(size, np.float32)
        largest = self.inner.mix(1.0, found, np.zeros_like(found), None, 0.0)
        return found, largest


class RotatedChunk(_Wrapper):
    """Both sides rotate their anchors and encode R a; being linear, R gives the difference back:

        delta = R^-1 (decoded difference of R a_j and R a_i),   R = R^-1 = `rotated`

    A value far from the others is spread over its block: |R delta|_inf is about 3 ||delta|| / 16, however the values
    are distributed (QuIP, Chee et al. 2023, arXiv 2307.13304; QuaRot, Ashkboos et al. 2024, arXiv 2404.00456, of
    weights and activations). No byte more is sent.

    Args:
        predicted: range of each *rotated* block.
    """

    def __init__(self, codec: Codec, a: Vector, predicted: NDArray[np.float32], *, lower: bool, seed: int) -> None:
        super().__init__(codec.chunk(rotated(a), predicted, lower=lower, seed=seed), len(a))

    def delta(self) -> tuple[Vector, Vector]:
        found, largest = self._inner_delta(self.blocks * BLOCK)
        return rotated(found)[: self.size], largest


class OutlierChunk(_Wrapper):
    """Each side names the `count` parameters of each block which it thinks will differ most. The named, of either side,
    travel in fp32; to the codec they are 0 on both sides, so that its grid reaches for the others alone.

        named = own | theirs;   delta_k = a_j,k - a_i,k (k in named),   decoded (others)

    Costs `count` bytes a block with the ranges (a place in the block is one byte), then 4 bytes for each named
    parameter: 2 to 4 times `count` parameters where one side's choice is half, or all, the other's.

    Args:
        predicted: range of each block's parameters but those of `own`.
        own: places of the named in their blocks, shape (blocks, count).
    """

    def __init__(
        self, codec: Codec, a: Vector, predicted: NDArray[np.float32], own: NDArray[np.uint8], *, lower: bool, seed: int
    ) -> None:
        self._a, self._own, self._lower = a.copy(), own, lower
        self._codec, self._predicted, self._seed = codec, predicted, seed
        super().__init__(self._coded(self._places(own)), len(a))
        self._levels = np.frombuffer(self.inner.ranges()[0], np.uint8)
        self._exact: Vector | None = None
        self._outbox: list[Buffer] = []

    def ranges(self) -> list[Buffer]:
        return [self._levels.tobytes() + self._own.tobytes()]

    def open(self, ranges: Buffer) -> None:
        told = array_of(ranges, "u1", self.blocks + self._own.size)
        theirs = self._places(told[self.blocks :].reshape(self._own.shape))
        self._named = np.union1d(self._places(self._own), theirs)
        # As wide as was told, though less is left to reach for: both sides must use one grid.
        self.inner = self._coded(self._named)
        self.inner.open(np.maximum(self._levels, told[: self.blocks]).data)
        self._outbox = [self._a[self._named].astype("<f4").data.cast("B")]

    def emit(self) -> list[Buffer]:
        buffers, self._outbox = self._outbox, []
        return buffers + self.inner.emit()

    def absorb(self, buffers: Sequence[Buffer]) -> None:
        if self._exact is None:
            if not buffers:
                raise PayloadError("no frame of outliers")
            theirs = finite(array_of(buffers[0], "<f4", len(self._named)).astype(np.float32))
            own = self._a[self._named]
            high, low = (theirs, own) if self._lower else (own, theirs)
            self._exact = high - low if self._lower else -(high - low)
            buffers = buffers[1:]
        super().absorb(buffers)

    def norm2(self) -> float:
        assert self._exact is not None
        return self.inner.norm2() + float(np.sum(np.square(self._exact, dtype=np.float64)))

    def delta(self) -> tuple[Vector, Vector]:
        assert self._exact is not None
        found, largest = self._inner_delta(self.size)
        found[self._named] += self._exact
        return found, largest

    def _places(self, own: NDArray[np.uint8]) -> NDArray[np.int64]:
        """In the chunk; a short last block may have been told of places that it has not."""
        blocks = np.arange(len(own), dtype=np.int64)[:, None] * BLOCK
        places = np.unique(blocks + own)
        return places[places < len(self._a)]

    def _coded(self, places: NDArray[np.int64]) -> ChunkCodec:
        rest = self._a.copy()
        rest[places] = 0.0
        return self._codec.chunk(rest, self._predicted, lower=self._lower, seed=self._seed)
