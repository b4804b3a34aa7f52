"""Problems of the suite `stability`: least squares, a regression, digits with batch normalisation, a transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Problem, Score
from simulations.lab.data import normal
from simulations.lab.problems import ByteTransformer, DigitsCnn, FlatModel

__all__ = ["PROBLEMS", "LeastSquares", "OneBatch"]

HELD_OUT: Final = 1_000_003
"""number of the peer whose data are held out"""


def _known(count: int) -> Tensor:
    """What a problem's hosts are to learn: the same normal numbers in every run."""
    return torch.from_numpy(normal(np.array([HELD_OUT]), np.array([1]), 7, count)[0].astype(np.float32))


@dataclass(frozen=True)
class LeastSquares(FlatModel):
    """|(X - T) z|^2 / dim with z normal. Its eigenvalues fall from 1 over `decades` decades."""

    decades: float = 6.0
    dim: int = 64
    batch: int = 16

    name = "least squares"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((self.dim, self.dim),)

    @cached_property
    def _spectrum(self) -> Tensor:
        return torch.logspace(0.0, -self.decades, self.dim)

    @cached_property
    def _target(self) -> Tensor:
        return _known(self.parameters).view(self.dim, self.dim).div(self.dim**0.5)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.parameters)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        drawn = normal(peers, steps, seed, self.batch * self.dim).astype(np.float32)
        return (torch.from_numpy(drawn).view(len(peers), self.batch, self.dim) * self._spectrum.sqrt(),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (inputs,) = batch
        error: Tensor = inputs @ (x.view(self.dim, self.dim) - self._target).T
        return error.square().sum(1).mean() / self.dim

    def evaluate(self, x: Tensor) -> Score:
        error = x.view(self.dim, self.dim) - self._target
        return Score(float((error.square() * self._spectrum).sum()) / self.dim, math.nan)


@dataclass(frozen=True)
class Regression(FlatModel):
    """A layer of ReLU learns what one of tanh says; 4,192 parameters."""

    dim: int = 32
    hidden: int = 64
    batch: int = 16

    name = "regression"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((self.dim, self.hidden), (self.hidden,), (self.hidden, self.dim), (self.dim,))

    def start(self, seed: int) -> Tensor:
        return self._drawn(seed, ((2.0 / self.dim) ** 0.5, 0.0, self.hidden**-0.5, 0.0))

    @cached_property
    def _teacher(self) -> list[Tensor]:
        scales = (2.0 / self.dim**0.5, 0.5, self.hidden**-0.5, 0.0)
        return [scale * part for scale, part in zip(scales, self._tensors(_known(self.parameters)), strict=True)]

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        drawn = normal(peers, steps, seed, self.batch * self.dim).astype(np.float32)
        return (torch.from_numpy(drawn).view(len(peers), self.batch, self.dim),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (inputs,) = batch
        first, bias, last, offset = self._tensors(x)
        inner, shift, outer, end = self._teacher
        told = torch.tanh(inputs @ inner + shift) @ outer + end
        return (F.relu(inputs @ first + bias) @ last + offset - told).square().mean()

    @cached_property
    def _validation(self) -> Tensor:
        places = np.full(64, HELD_OUT)
        return torch.cat(list(self.batches(places, np.arange(64), 0)[0]))

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Score:
        return Score(float(self.loss(x, self._validation)), math.nan)


@dataclass(frozen=True)
class BatchNormal(DigitsCnn):
    """`DigitsCnn` with batch normalisation (Ioffe & Szegedy, arXiv 1502.03167) by the statistics of each batch."""

    channels: tuple[int, int] = (4, 8)
    batch: int = 16

    name = "batch norm"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        first, second = self.channels
        normals = (first,), (first,), (second, first, 3, 3), (second,), (second,)
        return ((first, 1, 3, 3), *normals, (4 * second, 10), (10,))

    def start(self, seed: int) -> Tensor:
        first, second = self.channels
        scales = ((2.0 / 9) ** 0.5, -1.0, 0.0, (2.0 / (9 * first)) ** 0.5, -1.0, 0.0, (4.0 * second) ** -0.5, 0.0)
        return self._drawn(seed, scales)

    def logits(self, x: Tensor, pixels: Tensor) -> Tensor:
        first, gain, bias, second, other_gain, other_bias, last, offset = self._tensors(x)
        images = _normalised(F.conv2d(pixels.view(-1, 1, 8, 8), first, padding=1), gain, bias)
        images = _normalised(F.conv2d(images, second, padding=1), other_gain, other_bias)
        return images.flatten(1) @ last + offset


def _normalised(images: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Batch normalisation, ReLU, and max-pooling, shape (images, channels, height / 2, width / 2)."""
    centred = images - images.mean((0, 2, 3), keepdim=True)
    scaled = centred * (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
    return F.max_pool2d(F.relu(scaled * gain[:, None, None] + bias[:, None, None]), 2)


def _transformer(**data: Any) -> Problem:
    small = {"width": 32, "context": 24, "batch": 4, "blocks": 1, "held_out": 64}
    return ByteTransformer(**{**small, **data})


class OneBatch:
    """A problem whose hosts each see one batch in all steps."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return self._problem.batches(peers, 0 * steps, seed)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "least squares": LeastSquares,
    "regression": Regression,
    "batch norm": BatchNormal,
    "transformer": _transformer,
}
