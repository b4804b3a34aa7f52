"""A transformer that learned Python, adapted to C++ by LoRA (Hu et al. 2021, arXiv 2106.09685).

Only the factors A and B of every adapted matrix are parameters: W + (alpha / r) A B with A of shape (inputs, r). The
frozen W are constants of the problem. This module knows no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Lab, Setting
from simulations.lab.data import SHORTEST, Mixture, Text, held_out
from simulations.lab.problems import ByteTransformer, FlatModel

__all__ = ["ByteLora", "headers"]

Trained = Literal["both", "B", "in turn"]
"""the factors that are trained"""

ALPHA: Final = 8.0
"""PEFT's default. The product is scaled by ALPHA / r"""


@cache
def headers() -> Text:
    """The C++ headers of torch that people wrote, 6 MB in 600 files. Another torch has other files and curves."""
    folder = Path(torch.__file__).parent / "include"
    paths = [
        path for part in ("c10", "torch") for path in (folder / part).rglob("*.h") if "generated" not in path.parts
    ]
    named = sorted((path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)
    parts = [(name, content) for name, content in named if len(content) >= SHORTEST]
    train = [content for name, content in parts if not held_out(name)]
    validation = [content for name, content in parts if held_out(name)]
    sizes = tuple(len(content) for content in train)
    return Text(np.frombuffer(b"".join(train), np.uint8), sizes, np.frombuffer(b"".join(validation), np.uint8))


@cache
def _pretrained(model: ByteTransformer, steps: int) -> Tensor:
    """The model after `steps` of AdamW on the standard library's sources, shape (P,)."""
    lab = Lab(model, Setting(peers=1, every=steps, rounds=1, lr=2e-3))
    lab.start()
    lab.train(steps)
    return lab.x[0]


@dataclass(frozen=True)
class ByteLora(ByteTransformer):
    """Factors of the four matrices of every block of a transformer; 16,384 parameters at r 8."""

    context: int = 32
    held_out: int = 256
    width: int = 64
    rank: int = 8
    """r"""
    trained: Trained = "both"
    """both: A and B. B: A is a constant, drawn from `drawn`. In turn: B in one stretch of steps, A in the next"""
    drawn: int = 0
    """seed of A where it is a constant"""
    stretch: int = 20
    """steps of a stretch in which one factor is trained"""
    pretraining: int = 2000
    """steps that the frozen weights were trained for, with 16 windows each"""

    name = "byte-lora"
    embeddings = ()  # type: ignore[assignment]  # none of the factors is one

    @cached_property
    def model(self) -> ByteTransformer:
        """The transformer that is adapted."""
        return ByteTransformer(
            batch=16, context=self.context, held_out=1, width=self.width, heads=self.heads, blocks=self.blocks
        )

    @cached_property
    def base(self) -> list[Tensor]:
        """The frozen tensors."""
        return self.model._tensors(_pretrained(self.model, self.pretraining))

    @cached_property
    def _adapted(self) -> list[int]:
        """Places of the adapted matrices among the frozen tensors: all matrices but the embeddings."""
        return [place for place, shape in enumerate(self.model.shapes) if len(shape) == 2 and place > 1]

    @cached_property
    def _pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Shapes of A and B of every adapted matrix."""
        shapes = [self.model.shapes[place] for place in self._adapted]
        return [((shape[0], self.rank), (self.rank, shape[1])) for shape in shapes]

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        if self.trained == "B":
            return [b for _, b in self._pairs]
        return [shape for pair in self._pairs for shape in pair]

    def start(self, seed: int) -> Tensor:
        # Constants are made here, because `vmap` allows no chance in `loss`.
        _ = self.base, self._fixed
        if self.trained == "B":
            return torch.zeros(self.parameters)
        parts = zip(self._first(seed), self._pairs, strict=True)
        return torch.cat([each.flatten() for first, (_, b) in parts for each in (first, torch.zeros(b))])

    def _first(self, seed: int) -> list[Tensor]:
        """A of every adapted matrix at the start, with the spread that PEFT gives it."""
        generator = torch.Generator().manual_seed(seed)
        return [(3.0 * a[0]) ** -0.5 * torch.randn(a, generator=generator) for a, _ in self._pairs]

    @cached_property
    def _fixed(self) -> list[Tensor]:
        """A of every adapted matrix where it is a constant."""
        return self._first(self.drawn)

    def factors(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """A and B of every adapted matrix."""
        tensors = FlatModel._tensors(self, x)
        return (self._fixed, tensors) if self.trained == "B" else (tensors[::2], tensors[1::2])

    def products(self, x: Tensor) -> list[Tensor]:
        """What is added to every adapted matrix."""
        return [ALPHA / self.rank * (a @ b) for a, b in zip(*self.factors(x), strict=True)]

    def adapted(self, products: Sequence[Tensor]) -> list[Tensor]:
        """The transformer's tensors with these products added."""
        tensors = list(self.base)
        for place, product in zip(self._adapted, products, strict=True):
            tensors[place] = tensors[place] + product
        return tensors

    def _tensors(self, x: Tensor) -> list[Tensor]:
        """The transformer's tensors. Only the adapted ones depend on x."""
        return self.adapted(self.products(x))

    @cached_property
    def _mixture(self) -> Mixture:
        return headers().mixture(self.context + 1, self.dirichlet)

    @cached_property
    def _validation(self) -> Tensor:
        return headers().held_out(self.held_out, self.context + 1)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        windows = headers().windows(self._mixture.places(peers, steps, seed, self.batch), self.context + 1)
        if self.trained != "in turn":
            return (windows,)
        return windows, torch.from_numpy((steps // self.stretch % 2).astype(np.float32))

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        windows, *turn = batch
        return super().loss(self._gated(x, *turn), windows)

    def _gated(self, x: Tensor, *turn: Tensor) -> Tensor:
        """x, whose gradient is exactly 0 for the factors that are not trained in this turn: 0 is B's, 1 is A's."""
        if not turn:
            return x
        share = torch.where(self._is_a, turn[0], 1.0 - turn[0])
        return x.detach() + share * (x - x.detach())

    @cached_property
    def _is_a(self) -> Tensor:
        return torch.cat([torch.full((size,), place % 2 == 0) for place, size in enumerate(self._sizes)])

    @torch.no_grad()
    def score(self, products: Sequence[Tensor]) -> float:
        """Held-out loss of the transformer with these products added."""
        merged = torch.cat([tensor.flatten() for tensor in self.adapted(products)])
        parts = torch.split(self._validation, 512)
        return sum(float(self.model.loss(merged, part)) * len(part) for part in parts) / self.held_out
