"""Wrappers of the exchange's codecs on trial: a rotation in front, and outliers sent exactly.

Both are for heavy tails. The largest difference of a block sets its grid, so one outlier makes the grid coarse for all
256 values. A wrapper is a `ChunkCodec` on both sides, and keeps its promises: opposite differences, equal verdicts.
Neither is in the product. This module knows no algorithm, no replica and no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.base import Buffer, ChunkCodec, Codec, PayloadError, Vector, array_of
from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.dense import finite

__all__ = ["OutlierChunk", "RotatedChunk", "by_blocks", "rotated"]

_SIGNS: Final = np.random.default_rng(0x5349474E).choice([-1.0, 1.0], BLOCK)
"""equal in all blocks and peers, because ranges of rotated blocks must hold from one exchange to the next"""


def rotated(values: Vector) -> Vector:
    """D H D / 16 of each block of 256, with random signs D and the Walsh-Hadamard matrix H.

    It is orthogonal and its own inverse: D D = I, H H = 256 I. It uses additions alone (Fino & Algazi 1976) in fp64, so
    every host finds the same, and rotated(-x) is -rotated(x) to the last bit. Zeros fill a short last block.

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
    """A copy in blocks, shape (blocks, 256), padded with zeros."""
    rows: Vector = np.zeros(-(-len(values) // BLOCK) * BLOCK, np.float32)
    rows[: len(values)] = values
    return rows.reshape(-1, BLOCK)


class _Wrapper(ABC):
    """One side of a chunk: a `ChunkCodec` around another that encodes something else than the anchor."""

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

    def step2(self) -> float:
        return self.inner.step2()

    @abstractmethod
    def delta(self) -> tuple[Vector, Vector]:
        """The difference to the partner's anchor, shape (n,), and the largest value that each block's grid must reach.

        The difference is opposite on the other side to the last bit. The second vector has shape (blocks,).
        """

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
    """Both sides rotate their anchors and encode R a. R is linear, so it returns the difference:

        delta = R^-1 (decoded difference of R a_j and R a_i),   R = R^-1 = `rotated`

    The rotation spreads an outlier over its block: |R delta|_inf is about 3 ||delta|| / 16 for any distribution. (QuIP,
    Chee et al. 2023, arXiv 2307.13304; QuaRot, Ashkboos et al. 2024, arXiv 2404.00456, for weights and activations.) It
    costs no byte.

    Args:
        predicted: range of each *rotated* block.
    """

    def __init__(self, codec: Codec, a: Vector, predicted: NDArray[np.float32], *, lower: bool, seed: int) -> None:
        super().__init__(codec.chunk(rotated(a), predicted, lower=lower, seed=seed), len(a))

    def delta(self) -> tuple[Vector, Vector]:
        found, largest = self._inner_delta(self.blocks * BLOCK)
        return rotated(found)[: self.size], largest


class OutlierChunk(_Wrapper):
    """Each side names the `count` parameters of each block that it expects to differ most.

    Named parameters of either side travel in fp32. The codec sees 0 for them on both sides, so its grid covers the
    others alone.

        named = own | theirs;   delta_k = a_j,k - a_i,k (k in named),   decoded (others)

    The ranges grow by `count` bytes per block (an index in the block is one byte). Each named parameter costs 4 bytes.
    There are 2 to 4 times `count` per block, if half or all of the choices coincide.

    Args:
        predicted: range of each block without the parameters of `own`.
        own: indices of the named parameters in their blocks, shape (blocks, count).
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
        # The range stays as wide as announced, although less is left to cover: both sides must use one grid.
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
        """Indices in the chunk. A short last block drops those beyond its end."""
        blocks = np.arange(len(own), dtype=np.int64)[:, None] * BLOCK
        places = np.unique(blocks + own)
        return places[places < len(self._a)]

    def _coded(self, places: NDArray[np.int64]) -> ChunkCodec:
        rest = self._a.copy()
        rest[places] = 0.0
        return self._codec.chunk(rest, self._predicted, lower=self._lower, seed=self._seed)
