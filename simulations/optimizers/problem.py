"""What the optimizers train: handwritten digits with a network of two matrices, and noise of small batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.jobs.images import Images, load_images

__all__ = ["BATCH", "HIDDEN", "loss_of", "model", "score"]

BATCH: Final = 16
HIDDEN: Final = 32
"""width of the hidden layer, unless an optimizer needs larger tensors"""


@cache
def _images() -> tuple[Images, Images]:
    return load_images()


def model(seed: int, hidden: int = HIDDEN) -> nn.Module:
    """A new network of 74 parameters a hidden unit. All are in matrices: some optimizers take nothing else."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, 10, bias=False))


def loss_of(net: nn.Module, host: int, step: int) -> Callable[[], Tensor]:
    """The loss of the batch that `host` draws at `step`. It is the same batch at each call."""
    train, _ = _images()
    generator = torch.Generator().manual_seed(1_000_003 * host + step)
    drawn = torch.randint(len(train.labels), (BATCH,), generator=generator)
    pixels, labels = train.pixels[drawn], train.labels[drawn]
    return lambda: F.cross_entropy(net(pixels), labels)


@torch.no_grad()
def score(net: nn.Module) -> float:
    """Mean cross-entropy of the held-out images, in nats."""
    _, test = _images()
    return float(F.cross_entropy(net(test.pixels), test.labels))
