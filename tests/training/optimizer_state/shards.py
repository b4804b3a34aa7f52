"""The model of the tests of sharded state. Not a test."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CHECKPOINT = "checkpoint"


def model_and_optimizer(shard: Callable[[nn.Module], Any]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Seven rows, which no number of ranks here divides."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 5), 0.1 * (step + 1))).square().mean().backward()
        optimizer.step()
