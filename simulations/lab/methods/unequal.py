"""Hosts with batches of their own size."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Problem, Score
from simulations.lab.problems import PROBLEMS

__all__ = ["UnequalBatches"]


class UnequalBatches:
    """A problem whose peers have batches of their own size.

    A smaller batch is repeated until it is as long as the largest one. That leaves its mean gradient as it is.

    Args:
        of: name of the problem.
        sizes: samples per step of each peer, repeated up to N.
        data: options of the problem.

    Raises:
        ValueError: the largest size is no multiple of every other.
    """

    def __init__(self, of: str, *, sizes: Sequence[int], **data: Any) -> None:
        if any(max(sizes) % size for size in sizes):
            raise ValueError(f"batches of {sizes}: the largest must be a multiple of the others")
        self.inner: Problem = PROBLEMS[of](batch=max(sizes), **data)
        self.name = self.inner.name
        self.shapes: Sequence[tuple[int, ...]] = self.inner.shapes
        self.embeddings: Collection[int] = self.inner.embeddings
        self.parameters = self.inner.parameters
        self._sizes = np.array(sizes)

    def start(self, seed: int) -> Tensor:
        return self.inner.start(seed)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        own = self._sizes[peers % len(self._sizes)]
        chosen = torch.from_numpy(np.arange(self._sizes.max()) % own[:, None])
        rows = torch.arange(len(peers))[:, None]
        return tuple(each[rows, chosen] for each in self.inner.batches(peers, steps, seed))

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        return self.inner.loss(x, *batch)

    def evaluate(self, x: Tensor) -> Score:
        return self.inner.evaluate(x)
