"""Training processes that attach one after the other, and the moments of their optimizers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

import gossipdp
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.runtime.moments import MomentsCopier
from gossipdp.training.attachment import Attachment
from gossipdp.training.tensors.master_weights import MasterWeights
from tests.training.moments_daemon import MomentsDaemon

Optimizer = torch.optim.Optimizer


def attach(daemon: MomentsDaemon, model: nn.Module, optimizer: Optimizer) -> Attachment:
    with daemon.running():
        return gossipdp.attach(model, optimizer, home=daemon.server.path.parent, timeout=20)


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 300, bias=False), nn.BatchNorm1d(300), nn.Tanh(), nn.Linear(300, 10))


def loss_of(model: nn.Module, random: torch.Generator) -> torch.Tensor:
    data = torch.randn(32, 20, generator=random)
    target = torch.tanh(3 * data[:, :10]) + 0.1 * torch.randn(32, 10, generator=random)
    return nn.functional.mse_loss(model(data), target)


def train(
    model: nn.Module, optimizer: Optimizer, steps: int, daemon: MomentsDaemon | None = None, seed: int = 1
) -> list[float]:
    random, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, random)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if daemon is not None:
            daemon.pump()
    return losses


def die(peer: Attachment) -> None:
    """The process is gone without a message."""
    assert peer._session is not None and peer._session._connection.link is not None
    peer._stop()
    peer._session._connection.link.close()
    peer._session._connection._retry_at = math.inf


def adam(model: nn.Module, kind: type[Optimizer] = torch.optim.AdamW, **options: Any) -> Optimizer:
    return kind(model.parameters(), lr=3e-3, **options)  # type: ignore[call-arg]


def trained_and_gone(
    daemon: MomentsDaemon, kind: type[Optimizer] = torch.optim.AdamW, **options: Any
) -> tuple[nn.Module, Optimizer]:
    """The model and the optimizer of a process that made 41 steps and is gone."""
    model = model_of()
    optimizer = adam(model, kind, **options)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 41, daemon)
    die(peer)
    daemon.pump()
    return model, optimizer


def flat(model: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


def given(schema: Schema, v: float, m: float, steps: int) -> Moments:
    """What a source may send: one v and m for all parameters."""
    bench: list[Moments | None] = []
    copier = MomentsCopier(lambda piece, done, place: done(piece()))
    copier.read("second", steps, np.full(schema.size, v, np.float32), schema, bench.append)
    copier.read("first", steps, np.full(schema.size, m, np.float32), schema, bench.append)
    assert bench[1] is not None
    return bench[1]


def schema_of(model: nn.Module) -> Schema:
    return MasterWeights(model, ()).schema
