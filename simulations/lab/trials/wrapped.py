"""Trials: `pairwise` with a rotation in front of its codec, and with outliers sent exactly.

`codecs.py` has the wrapped codecs. This module predicts their ranges and holds the methods. Partners and mixing are
those of `pairwise`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import block_max
from gossipdp.algorithms.pairwise import RANGE_DECAY, RANGE_SHARE, Pairwise
from gossipdp.codecs import CODECS
from gossipdp.codecs.base import ChunkCodec, Codec, Vector
from gossipdp.codecs.blocks import BLOCK
from gossipdp.protocol import jobs
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.trials.codecs import OutlierChunk, RotatedChunk, by_blocks, rotated

__all__ = ["OutlierGossip", "RotatedGossip"]


class _Wrapping(Pairwise, ABC):
    """`Pairwise` with a wrapper around each chunk's codec."""

    @abstractmethod
    def _wrapped(self, codec: Codec, chunk: int, predicted: NDArray[np.float32], lower: bool, seed: int) -> ChunkCodec:
        """The wrapper around `codec`. `predicted` are the ranges that `pairwise` predicts, shape (blocks,)."""

    @abstractmethod
    def _moved(self, chunk: int, movement: Vector, before: NDArray[np.float32]) -> NDArray[np.float32]:
        """Movement of each block since its last exchange, this outer step included, shape (blocks,)."""

    def _codec(self, key: jobs.ChunkKey, coding: jobs.Coding) -> ChunkCodec:
        super()._codec(key, coding)
        opened = self._open[key]
        name = b"%s%d,%d" % (key.initiator, key.exchange, key.chunk)
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
        predicted = self.range[self._blocks(key.chunk)] + opened.moved
        opened.side = self._wrapped(CODECS[coding.codec], key.chunk, predicted, coding.lower, seed)
        return opened.side

    def _outer_step(self, job: jobs.OuterStep) -> jobs.Stepped:
        span, blocks = self.ledger.span(job.chunk), self._blocks(job.chunk)
        a, moved = self.ledger.a[span].copy(), self.moved[blocks].copy()
        stepped = super()._outer_step(job)
        self.moved[blocks] = self._moved(job.chunk, self.ledger.a[span] - a, moved)
        return stepped


class _Rotated(_Wrapping):
    """Ranges of rotated blocks: `RotatedChunk` reports the largest rotated difference, and this class rotates the
    steps.
    """

    def _wrapped(self, codec: Codec, chunk: int, predicted: NDArray[np.float32], lower: bool, seed: int) -> ChunkCodec:
        return RotatedChunk(codec, self.ledger.a[self.ledger.span(chunk)], predicted, lower=lower, seed=seed)

    def _moved(self, chunk: int, movement: Vector, before: NDArray[np.float32]) -> NDArray[np.float32]:
        return before + block_max(rotated(movement))


class _WithOutliers(_Wrapping):
    """Predicts for every parameter k what `pairwise` predicts per block, and names the `count` largest of a block:

    r_k <- max(0.6 |delta_k|, 0.8 r_k);   d_k = |own steps on k since|;   named: largest r_k + d_k
    predicted range of the others = max r_k + max d_k
    """

    def __init__(self, count: int, *, clip: float) -> None:
        super().__init__(clip=clip)
        self._count = count

    def allocate(self, size: int, trainable: int, chunk_parameters: int, tensors: Sequence[int] = ()) -> None:
        super().allocate(size, trainable, chunk_parameters, tensors)
        self._reach: Vector = np.zeros(self.ledger.size, np.float32)
        self._drift: Vector = np.zeros(self.ledger.size, np.float32)

    def _wrapped(self, codec: Codec, chunk: int, predicted: NDArray[np.float32], lower: bool, seed: int) -> ChunkCodec:
        span = self.ledger.span(chunk)
        reach, drift = by_blocks(self._reach[span]), by_blocks(self._drift[span])
        own = np.argpartition(reach + drift, -self._count, 1)[:, -self._count :].astype(np.uint8)
        np.put_along_axis(reach, own.astype(np.int64), 0.0, 1)
        np.put_along_axis(drift, own.astype(np.int64), 0.0, 1)
        others = reach.max(1) + drift.max(1)
        return OutlierChunk(codec, self.ledger.a[span], others, own, lower=lower, seed=seed)

    def _moved(self, chunk: int, movement: Vector, before: NDArray[np.float32]) -> NDArray[np.float32]:
        self._drift[self.ledger.span(chunk)] += np.abs(movement)
        return before + block_max(movement)

    def _execute(self, job: jobs.Job[object]) -> object:
        side = self._open[job.key].side if isinstance(job, jobs.DecodeAndMix | jobs.Mix) else None
        result = super()._execute(job)
        if isinstance(job, jobs.DecodeAndMix | jobs.Mix) and isinstance(side, OutlierChunk) and job.typed(result).mixed:
            span = self.ledger.span(job.key.chunk)
            delta = np.abs(side.delta()[0])
            self._reach[span] = np.maximum(RANGE_SHARE * delta, RANGE_DECAY * self._reach[span])
            # The laboratory takes no outer step in the middle of a chunk.
            self._drift[span] = 0.0
        return result


# -- methods -------------------------------------------------------------------------------------------------------


class RotatedGossip(PairwiseGossip):
    """`pairwise` with the chunks of `RotatedChunk`."""

    def __init__(self, options: PairwiseOptions | None = None) -> None:
        super().__init__(options, "pairwise, rotated")
        if self.options.warmup_steps:
            raise ValueError("no warm-up but the laboratory's own")

    def _algorithm(self, peer: int) -> Pairwise:
        return _Rotated(clip=self.options.clip)


class OutlierGossip(PairwiseGossip):
    """`pairwise` with the chunks of `OutlierChunk`.

    Args:
        count: parameters per block of 256 that each side names. With 2, some 1 % of all parameters are exact.
    """

    def __init__(self, options: PairwiseOptions | None = None, *, count: int = 2) -> None:
        super().__init__(options, "pairwise, outliers exact")
        if self.options.codec != "modulo" or not 1 <= count < BLOCK:
            raise ValueError(f"outliers are of modulo codecs, some of a block; not {count} of {self.options.codec}")
        if self.options.warmup_steps:
            raise ValueError("no warm-up but the laboratory's own")
        self._count = count

    def _algorithm(self, peer: int) -> Pairwise:
        return _WithOutliers(self._count, clip=self.options.clip)
