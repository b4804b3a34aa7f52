"""Training processes that attach one after the other, and the moments of their optimizers."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

import gossipdp
from gossipdp.codecs import moments as codec
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.runtime.moments import MomentsCopier
from gossipdp.training.attachment import Attachment
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.tensors.master_weights import MasterWeights
from tests.codecs.moments_reference import encoded
from tests.training.moments_daemon import MomentsDaemon

Optimizer = torch.optim.Optimizer


def attach(daemon: MomentsDaemon, model: nn.Module, optimizer: Optimizer) -> Attachment:
    with daemon.running():
        return gossipdp.attach(model, optimizer, home=daemon.server.path.parent)


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
    chunks = [encoded(np.full(size, m, np.float32), np.full(size, v, np.float32)).data for size in chunk_sizes(schema)]
    return Moments(steps, tuple(Frozen(payload, codec.digest(payload)) for payload in chunks))


def inherited(moments: AdamMoments, v: float, m: float, steps: int) -> bool:
    """Let an optimizer begin with one v and m for all parameters."""
    schema = moments._layout.schema
    memory, held = np.zeros(4 * schema.size + 4096, np.uint8), given(schema, v, m, steps)
    MomentsCopier(lambda piece, done, place: done(piece())).write(memory, held, schema, lambda: None)
    moments.load(memory)
    return moments.finish(steps)


def handed(moments: AdamMoments, steps: int) -> Moments:
    """What a daemon gets of these moments."""
    schema, found = moments._layout.schema, list[Moments | None]()
    memory = np.zeros(4 * schema.size + 4096, np.uint8)
    assert moments.encoder(memory).step(everything=True)
    MomentsCopier(lambda piece, done, place: done(piece())).read(steps, memory, schema, found.append)
    assert found[0] is not None
    return found[0]


def schema_of(model: nn.Module) -> Schema:
    return MasterWeights(model, ()).schema
