"""A small model to attach, steps that train it, and what tests compare of it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import gossipdp
from gossipdp.runtime import link as links
from gossipdp.training.attachment import Attachment
from tests.training.ledger_daemon import LedgerDaemon

Optimizer = torch.optim.Optimizer


def attach(daemon: LedgerDaemon, model: nn.Module, optimizer: Optimizer, **options: object) -> Attachment:
    with daemon.running():
        peer = gossipdp.attach(model, optimizer, home=daemon.server.path.parent, **options)  # type: ignore[arg-type]
    daemon.pump()  # its thread may have ended before it read the last message of the attach
    return peer


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 10))


def train(
    model: nn.Module, optimizer: Optimizer, steps: int, after: Callable[[], object] = lambda: None, *, seed: int = 7
) -> None:
    """Steps of a regression on random data; LBFGS takes its closure."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        data, target = torch.randn(8, 20, generator=generator), torch.randn(8, 10, generator=generator)

        def closure(data: torch.Tensor = data, target: torch.Tensor = target) -> float:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data), target)
            loss.backward()
            return loss.item()

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        after()


def vector(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().double().reshape(-1).numpy() for p in model.parameters()])


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def submits(daemon: LedgerDaemon) -> list[tuple[int, int]]:
    return [(event.steps, event.samples) for event in daemon.events if isinstance(event, links.Submitted)]
