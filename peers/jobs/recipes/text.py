"""Data and arguments of the recipes. The data are bytes of the standard library's sources.

A recipe takes `[STEPS] [OUT.safetensors]`, and some a size of byte_gpt after these. Nothing here may know of gossip.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.utils.data import Dataset

from peers.jobs.byte_gpt import data_generator, load_corpus, windows_at

__all__ = ["Options", "Windows", "options", "save", "size", "warm_up"]


class Options(NamedTuple):
    steps: int
    out: Path | None


def options() -> Options:
    given = sys.argv[1:3]
    return Options(int(given[0]) if given else 300, Path(given[1]) if len(given) > 1 else None)


def size() -> str:
    """The model's size, a key of `byte_gpt.SIZES`."""
    return sys.argv[3] if len(sys.argv) > 3 else "0.25M"


class Windows(Dataset[Tensor]):
    """`count` windows of `context` bytes and the next one. They differ between hosts, and not between ranks of one."""

    def __init__(self, count: int, context: int = 32) -> None:
        self._text, self._context = load_corpus().train, context
        self._starts = torch.randint(len(self._text) - context, (count,), generator=data_generator(None, 0))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Tensor:
        return windows_at(self._text, self._starts[index : index + 1], self._context)[0]


def save(model: nn.Module, out: Path | None) -> None:
    if out is not None:
        save_model(model, str(out))


def warm_up(step: int) -> float:
    """The factor of the learning rate at a step."""
    return min(1.0, (step + 1) / 20)
