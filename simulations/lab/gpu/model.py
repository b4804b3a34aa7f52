"""A GPT on tokens as a problem of the laboratory, on a device, in bf16 autocast if wanted.

Every host reads its own share of the text, in an order of its own in every pass. This module knows no method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Score
from simulations.lab.gpu.text import Tokens
from simulations.lab.problems import FlatModel

__all__ = ["TokenGpt"]

EPSILON: Final = 1e-6
AT_ONCE: Final = 16
"""windows that are evaluated in one call"""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenGpt(FlatModel):
    """Causal transformer blocks (Vaswani et al. 2017), pre-norm, tied embeddings, no biases."""

    text: Tokens
    vocabulary: int
    context: int
    width: int
    heads: int
    blocks: int
    batch: int
    """windows of a step and host"""
    held_out: int
    """evenly spaced validation windows"""
    shares: int
    """parts of the text; host i reads part i"""
    device: str = "cpu"
    half: bool = False
    """whether matrix products are in bf16 (autocast); parameters and gradients are fp32"""

    name = "token-gpt"
    embeddings = (0, 1)

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        width = self.width
        block = ((width,), (width, 3 * width), (width, width), (width,), (width, 4 * width), (4 * width, width))
        return ((self.vocabulary, width), (self.context, width), *(block * self.blocks), (width,))

    @property
    def windows(self) -> int:
        """Windows of the training text. None overlaps another."""
        return (len(self.text.train) - 1) // self.context

    def start(self, seed: int) -> Tensor:
        # Layers that add to the residual stream begin smaller in deeper models (GPT-2).
        narrow, less = self.width**-0.5, (2.0 * self.blocks) ** -0.5
        block = (-1.0, narrow, less * narrow, -1.0, narrow, 0.5 * less * narrow)
        return self._drawn(seed, (0.02, 0.02, *(block * self.blocks), -1.0))

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        places = [self._places(int(peer), int(step), seed) for peer, step in zip(peers, steps, strict=True)]
        return (_windows(self.text.train, self.context * np.stack(places), self.context),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        (windows,) = batch
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half):
            table, positions, *rest, gain = self._tensors(x)
            length, shape = windows.shape[1] - 1, (self.width,)
            stream = F.embedding(windows[:, :-1], table) + positions[:length]
            for number in range(self.blocks):
                before, attention, out, then, wider, narrower = rest[6 * number : 6 * number + 6]
                parts = F.rms_norm(stream, shape, before, EPSILON) @ attention
                query, key, value = parts.view(len(windows), length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
                stream = stream + mixed.transpose(1, 2).flatten(2) @ out
                hidden = F.gelu(F.rms_norm(stream, shape, then, EPSILON) @ wider, approximate="tanh")
                stream = stream + hidden @ narrower
            logits = F.rms_norm(stream, shape, gain, EPSILON) @ table.mT
            return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Score:
        """Held-out loss in nats per token."""
        x = x.to(self.device)
        parts = torch.split(self._validation, AT_ONCE)
        total = sum(float(self.loss(x, part.to(self.device))) * len(part) for part in parts)
        return Score(total / self.held_out, math.nan)

    @cached_property
    def _validation(self) -> Tensor:
        last = len(self.text.validation) - self.context - 1
        return _windows(self.text.validation, np.linspace(0, last, self.held_out).astype(np.int64), self.context)

    def _places(self, peer: int, step: int, seed: int) -> NDArray[np.int64]:
        """Numbers of the windows that this host reads in this step, shape (batch,)."""
        own = self.windows // self.shares
        turns, places = np.divmod(step * self.batch + np.arange(self.batch), own)
        orders = [_order(own, seed, peer, int(turn)) for turn in turns]
        share = np.array([order[place] for order, place in zip(orders, places, strict=True)], np.int64)
        return share * self.shares + peer % self.shares


@lru_cache(32)
def _order(count: int, seed: int, peer: int, turn: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, peer, turn, 0x746F6B)).permutation(count)


def _windows(text: NDArray[np.uint16], first: NDArray[np.int64], length: int) -> Tensor:
    """`length` tokens and the next one from each index on, shape (*first.shape, length + 1), int64."""
    return torch.from_numpy(text[first[..., None] + np.arange(length + 1)].astype(np.int64))
