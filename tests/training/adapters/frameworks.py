"""A small model and its rows for any framework, and what the daemon has from it."""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from tests.training.ledger_daemon import LedgerDaemon

FRAMEWORKS = {"hf": "transformers", "lightning": "lightning", "accelerate": "accelerate", "ray": "ray"}


def framework(name: str) -> ModuleType:
    """The adapter of a framework, if it is installed."""
    pytest.importorskip(FRAMEWORKS[name], reason=f"{FRAMEWORKS[name]} is not installed")
    return importlib.import_module(f"gossipdp.training.adapters.{name}")


def seen(daemon: LedgerDaemon, kind: type) -> list[Any]:
    daemon.pump()
    return [event for event in daemon.events if isinstance(event, kind)]


def handed_over(daemon: LedgerDaemon) -> tuple[int, int]:
    """Steps and samples."""
    submits = seen(daemon, links.Submitted)
    return sum(event.steps for event in submits), sum(event.samples for event in submits)


def is_what_was_handed_over(model: nn.Module, daemon: LedgerDaemon) -> bool:
    daemon.pump()
    assert daemon.last is not None
    return all(
        np.array_equal(daemon.last[start : start + p.numel()], p.detach().numpy().ravel())
        for start, p in zip((entry.offset for entry in daemon.schema.entries), model.parameters(), strict=True)  # type: ignore[union-attr]
    )


class Rows(torch.utils.data.Dataset):
    """y = 3 x, as a data set of transformers."""

    def __init__(self, count: int) -> None:
        self.x = torch.linspace(-1, 1, count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index : index + 1], "labels": 3 * self.x[index : index + 1]}


class Line(nn.Module):
    """Raises at the forward pass `broken_at`."""

    def __init__(self, broken_at: int = -1, error: type[Exception] = ZeroDivisionError) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.calls, self.broken_at, self.error = 0, broken_at, error

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == self.broken_at:
            raise self.error("CUDA out of memory.")
        y = self.linear(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


class Tail(nn.Module):
    """A loss with weights of its own, beside the model; a queue that must not be averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("queue", torch.zeros(3))


def exchanged(daemon: LedgerDaemon) -> list[str]:
    """Names of what is averaged."""
    daemon.pump()
    assert daemon.schema is not None
    return [entry.name for entry in daemon.schema.entries]
