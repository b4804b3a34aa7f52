"""Problems of the laboratory: two byte-level language models, two digit classifiers, a quadratic, and pure consensus.

A problem is a model as one flat vector and a loss that `torch.func` can batch over replicas. Its data come from
`data.py`. A new problem is one class and one line in `PROBLEMS`. This module knows no replica, method or optimizer.

`dirichlet` sets how similar the peers' data are (`data.Mixture`). The default, infinite, is iid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Problem, Score
from simulations.lab.data import Mixture, digits, normal, text

__all__ = ["PROBLEMS", "ByteMlp", "ByteTransformer", "Consensus", "DigitsCnn", "DigitsMlp", "FlatModel", "Quadratic"]

BYTES: Final = 256


class FlatModel:
    """A flat vector and the tensors in it."""

    embeddings: Collection[int] = ()

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        raise NotImplementedError

    @cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def parameters(self) -> int:
        return sum(self._sizes)

    def _tensors(self, x: Tensor) -> list[Tensor]:
        # One split: its gradient is one concatenation. Slices would add whole vectors.
        return [part.view(shape) for part, shape in zip(torch.split(x, self._sizes), self.shapes, strict=True)]

    def _drawn(self, seed: int, scales: Sequence[float]) -> Tensor:
        """Normal numbers, shape (P,), with one standard deviation per tensor. A negative scale means that constant."""
        generator = torch.Generator().manual_seed(seed)
        parts = [
            scale * torch.randn(size, generator=generator) if scale >= 0.0 else torch.full((size,), -scale)
            for size, scale in zip(self._sizes, scales, strict=True)
        ]
        return torch.cat(parts)


# -- language ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bytes(FlatModel):
    """Predicts the next byte of the standard library's sources."""

    dirichlet: float = math.inf
    batch: int = 64
    """windows per step"""
    context: int = 16
    """largest number of bytes seen"""
    held_out: int = 8192
    """evenly spaced validation windows"""

    @cached_property
    def _mixture(self) -> Mixture:
        return text().mixture(self.context + 1, self.dirichlet)

    @cached_property
    def _validation(self) -> Tensor:
        return text().held_out(self.held_out, self.context + 1)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return (text().windows(self._mixture.places(peers, steps, seed, self.batch), self.context + 1),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Score:
        # Parts of this size stay in the caches.
        parts = torch.split(self._validation, max(1, 16384 // self.context))
        total = sum(float(self.loss(x, part)) * len(part) for part in parts)
        return Score(total / self.held_out, math.nan)


@dataclass(frozen=True)
class ByteMlp(_Bytes):
    """A multilayer perceptron on the 16 bytes before (Bengio et al. 2003); 51,584 parameters."""

    embedding: int = 8
    hidden: int = 128

    name = "byte-mlp"
    embeddings = (0,)

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        inputs, hidden = self.context * self.embedding, self.hidden
        return ((BYTES, self.embedding), (inputs, hidden), (hidden,), (hidden, BYTES), (BYTES,))

    def start(self, seed: int) -> Tensor:
        inputs = self.context * self.embedding
        return self._drawn(seed, (1.0, (2.0 / inputs) ** 0.5, 0.0, 0.5 * self.hidden**-0.5, 0.0))

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (windows,) = batch
        table, first, bias, last, offset = self._tensors(x)
        hidden = F.relu(F.embedding(windows[:, :-1], table).flatten(1) @ first + bias)
        return F.cross_entropy(hidden @ last + offset, windows[:, -1])


@dataclass(frozen=True)
class ByteTransformer(_Bytes):
    """Two causal transformer blocks (Vaswani et al. 2017), pre-norm, tied embeddings, no biases; 252,384 parameters."""

    batch: int = 4
    context: int = 64
    held_out: int = 128
    width: int = 96
    heads: int = 4
    blocks: int = 2

    name = "byte-transformer"
    embeddings = (0, 1)

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        width = self.width
        block = ((width,), (width, 3 * width), (width, width), (width,), (width, 4 * width), (4 * width, width))
        return ((BYTES, width), (self.context, width), *(block * self.blocks), (width,))

    def start(self, seed: int) -> Tensor:
        narrow, wide = self.width**-0.5, (4.0 * self.width) ** -0.5
        # Layers that add to the residual stream begin smaller in deeper models (GPT-2).
        less = (2.0 * self.blocks) ** -0.5
        block = (-1.0, narrow, less * narrow, -1.0, narrow, less * wide)
        return self._drawn(seed, (0.05, 0.02, *(block * self.blocks), -1.0))

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (windows,) = batch
        table, positions, *rest, gain = self._tensors(x)
        sequences, length = windows.shape[0], windows.shape[1] - 1
        later = torch.full((length, length), -math.inf).triu(1)
        stream = (F.embedding(windows[:, :-1], table) + positions[:length]).flatten(0, 1)
        for number in range(self.blocks):
            before, attention, out, then, wider, narrower = rest[6 * number : 6 * number + 6]
            parts = (_normal(stream) * before @ attention).view(sequences, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = query @ key.mT * (self.width // self.heads) ** -0.5
            mixed = (scores + later).softmax(-1) @ value
            stream = stream + mixed.transpose(1, 2).reshape(sequences * length, -1) @ out
            stream = stream + F.gelu(_normal(stream) * then @ wider, approximate="tanh") @ narrower
        return F.cross_entropy(_normal(stream) * gain @ table.mT, windows[:, 1:].flatten())


def _normal(stream: Tensor) -> Tensor:
    """Each row divided by its root mean square (Zhang & Sennrich 2019, arXiv 1910.07467)."""
    return stream * (stream.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


# -- digits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Digits(FlatModel):
    dirichlet: float = math.inf
    batch: int = 32

    @cached_property
    def _mixture(self) -> Mixture:
        return Mixture(digits().sizes, self.dirichlet)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        drawn = torch.from_numpy(self._mixture.places(peers, steps, seed, self.batch))
        return digits().pixels[drawn], digits().labels[drawn]

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        pixels, labels = batch
        return F.cross_entropy(self.logits(x, pixels), labels)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Score:
        labels = digits().held_out_labels
        logits = self.logits(x, digits().held_out_pixels)
        right = (logits.argmax(1) == labels).float().mean()
        return Score(float(F.cross_entropy(logits, labels)), float(right))

    def logits(self, x: Tensor, pixels: Tensor) -> Tensor:
        """Logits, shape (images, 10)."""
        raise NotImplementedError


@dataclass(frozen=True)
class DigitsMlp(_Digits):
    """One hidden layer, 9,610 parameters."""

    hidden: int = 128

    name = "digits-mlp"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((64, self.hidden), (self.hidden,), (self.hidden, 10), (10,))

    def start(self, seed: int) -> Tensor:
        return self._drawn(seed, (0.125 * 2.0**0.5, 0.0, self.hidden**-0.5, 0.0))

    def logits(self, x: Tensor, pixels: Tensor) -> Tensor:
        first, bias, last, offset = self._tensors(x)
        return F.relu(pixels @ first + bias) @ last + offset


@dataclass(frozen=True)
class DigitsCnn(_Digits):
    """Two 3 x 3 convolutions, each with max-pooling, and a linear layer (LeCun et al. 1989); 6,090 parameters."""

    channels: tuple[int, int] = (16, 32)

    name = "digits-cnn"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        first, second = self.channels
        return ((first, 1, 3, 3), (first,), (second, first, 3, 3), (second,), (4 * second, 10), (10,))

    def start(self, seed: int) -> Tensor:
        first, second = self.channels
        scales = ((2.0 / 9) ** 0.5, 0.0, (2.0 / (9 * first)) ** 0.5, 0.0, (4.0 * second) ** -0.5, 0.0)
        return self._drawn(seed, scales)

    def logits(self, x: Tensor, pixels: Tensor) -> Tensor:
        first, bias, second, other_bias, last, offset = self._tensors(x)
        images = F.max_pool2d(F.relu(F.conv2d(pixels.view(-1, 1, 8, 8), first, bias, padding=1)), 2)
        images = F.max_pool2d(F.relu(F.conv2d(images, second, other_bias, padding=1)), 2)
        return images.flatten(1) @ last + offset


# -- closed forms --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic(FlatModel):
    """curvature/2 ||x - 1||^2 with independent normal gradient noise, E||noise||^2 = noise^2.

    With SGD of rate r, a step shrinks a replica's deviation from the mean by 1 - r curvature and adds r noise.
    """

    size: int = 1024
    curvature: float = 0.0
    noise: float = 1.0

    name = "quadratic"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((self.size,),)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.size)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        scale = self.noise / self.size**0.5
        return (torch.from_numpy((scale * normal(peers, steps, seed, self.size)).astype(np.float32)),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (noise,) = batch
        return self._true(x) + noise @ x

    def _true(self, x: Tensor) -> Tensor:
        return 0.5 * self.curvature * (x - 1.0).square().sum()

    def evaluate(self, x: Tensor) -> Score:
        return Score(float(self._true(x)), math.nan)


@dataclass(frozen=True)
class Consensus(FlatModel):
    """No learning: replicas begin at independent normal points, and only the method moves them."""

    peers: int = 16
    size: int = 1024

    name = "consensus"

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return ((self.size,),)

    def start(self, seed: int) -> Tensor:
        """Initial replicas, shape (peers, size)."""
        return torch.randn(self.peers, self.size, generator=torch.Generator().manual_seed(seed))

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return (torch.zeros(len(peers)),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        return x.sum() * batch[0]

    def evaluate(self, x: Tensor) -> Score:
        return Score(0.0, math.nan)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "byte-mlp": ByteMlp,
    "byte-transformer": ByteTransformer,
    "consensus": Consensus,
    "digits-cnn": DigitsCnn,
    "digits-mlp": DigitsMlp,
    "quadratic": Quadratic,
}
