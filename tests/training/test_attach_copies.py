"""attach(): optimizers with master weights undo corrections, and are refused before that reaches the network."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.master_weights import MasterWeights
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train

Optimizer = torch.optim.Optimizer


class Masters(Optimizer):
    """Steps on copies of the parameters, which it makes at once or with its first step, and copies them back."""

    def __init__(self, parameters: Any, lr: float = 1e-3, *, late: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self.masters: dict[nn.Parameter, torch.Tensor] = {}
        if not late:
            self._make()

    def _make(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.masters.setdefault(parameter, parameter.detach().float().clone())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._make()
        for parameter, master in self.masters.items():
            if parameter.grad is not None:
                master.sub_(self.param_groups[0]["lr"] * parameter.grad.float().sign())
                parameter.copy_(master)


def moved(daemon: LedgerDaemon, size: float, seed: int = 0) -> None:
    """An exchange brings a correction of this size to each element."""
    daemon.mix(size * np.random.default_rng(seed).standard_normal(daemon.region.size, np.float32))
    daemon.seal()


def anchor_of(model: nn.Module) -> np.ndarray:
    """The network's other model, in this model's layout."""
    layout = Layout(model)
    flat = np.zeros(layout.schema.size, np.float32)
    layout.read(flat)
    return flat


# -- told ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_joiner_whose_optimizer_puts_its_first_weights_back_is_gd_317(tmp_path: Path, dtype: torch.dtype) -> None:
    daemon = LedgerDaemon(tmp_path, anchor=anchor_of(small(1)))
    model = small().to(dtype)
    optimizer = Masters(model.parameters())
    peer = attach(daemon, model, optimizer)
    loss = model(torch.ones(2, 20, dtype=dtype)).float().square().mean()
    loss.backward()
    with pytest.raises(ConfigError, match="GD-317") as caught:
        optimizer.step()
    assert "Masters" in caught.value.seen and "fp32" in caught.value.do
    daemon.pump()
    assert not submits(daemon) and peer.alone, "nothing of it has reached the network"
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks
    right = torch.optim.SGD(model.parameters(), lr=0.1)
    again = attach(daemon, model, right)
    model(torch.ones(2, 20, dtype=dtype)).float().square().mean().backward()
    right.step()
    daemon.pump()
    assert submits(daemon) == [(1, 1)] and not again.alone, "the daemon was left to the next"
    again.detach()
    daemon.server.close()


@pytest.mark.parametrize("late", [False, True])
def test_who_started_the_network_is_told_with_the_second_correction(daemon: LedgerDaemon, late: bool) -> None:
    """One correction may be undone by chance: by steps that repeat what it took back."""
    model = small()
    optimizer = Masters(model.parameters(), late=late)
    attach(daemon, model, optimizer, every=3)
    train(model, optimizer, 4, daemon.pump)
    moved(daemon, 0.01)
    train(model, optimizer, 3, daemon.pump)
    moved(daemon, 0.01)
    with pytest.raises(ConfigError, match="GD-317"):
        train(model, optimizer, 3, daemon.pump)


def test_a_copy_that_is_made_with_the_first_step_is_told_of_a_joiner_too(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, anchor=anchor_of(small(1)))
    model = small()
    optimizer = Masters(model.parameters(), late=True)
    attach(daemon, model, optimizer)
    train(model, optimizer, 3, daemon.pump)
    moved(daemon, 0.01)
    train(model, optimizer, 3, daemon.pump)
    moved(daemon, 0.01)
    with pytest.raises(ConfigError, match="GD-317"):
        train(model, optimizer, 3, daemon.pump)
    daemon.server.close()


def test_a_first_step_that_moves_nothing_says_nothing(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, anchor=anchor_of(small(1)))
    model = small()
    optimizer = Masters(model.parameters())
    attach(daemon, model, optimizer)
    optimizer.step()
    optimizer.step()
    with pytest.raises(ConfigError, match="GD-317"):
        train(model, optimizer, 1)
    daemon.server.close()


# -- not told -----------------------------------------------------------------------------------------------------


def own(kind: type[Optimizer]) -> Any:
    """Like one of torch's, but from another package."""
    return type("Own", (kind,), {})


SGD, AdamW = own(torch.optim.SGD), own(torch.optim.AdamW)
USUAL: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "too fast": lambda p: SGD(p, lr=1.5),
    "decay": lambda p: AdamW(p, lr=0.1, weight_decay=5.0),
    "slow": lambda p: AdamW(p, lr=1e-6),
    "rmsprop": lambda p: own(torch.optim.RMSprop)(p, lr=1e-2),
    "lbfgs": lambda p: own(torch.optim.LBFGS)(p, max_iter=5, line_search_fn="strong_wolfe"),
    "standing": lambda p: SGD(p, lr=0.0),
}


@pytest.mark.parametrize("usual", USUAL)
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizers_of_the_parameters_train_on(tmp_path: Path, usual: str, size: float, dtype: torch.dtype) -> None:
    daemon = LedgerDaemon(tmp_path, anchor=anchor_of(small(1)) if size > 1e-3 else None)
    model = small()
    wide = nn.Sequential(model, nn.Identity()) if dtype is torch.float32 else Cast(model.to(dtype))
    optimizer = USUAL[usual](wide.parameters())
    peer = attach(daemon, wide, optimizer)
    for seed in range(6):
        moved(daemon, size, seed)
        train(wide, optimizer, 2, daemon.pump, seed=seed)
    assert peer.steps == 12 and daemon.drained == 6
    peer.detach()
    daemon.server.close()


class Cast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.inner(x.bfloat16()).float()
        return said


@pytest.mark.parametrize("doubtful", [True, False])
def test_it_is_looked_at_only_until_a_correction_has_stayed(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch, doubtful: bool
) -> None:
    looks = itertools.count()
    elements = MasterWeights._elements
    monkeypatch.setattr(MasterWeights, "_elements", lambda self: (next(looks), elements(self))[1])
    model = small()
    optimizer = (SGD if doubtful else torch.optim.SGD)(model.parameters(), lr=0.01)
    attach(daemon, model, optimizer)
    seen = []
    for seed in range(6):
        moved(daemon, 0.01, seed)
        train(model, optimizer, 2, daemon.pump)
        seen.append(next(looks) - seed)
    # Before, after, and after the next step: once for the model that was loaded, once for the first correction.
    assert seen == [6 if doubtful else 0] * 6


# -- ranks --------------------------------------------------------------------------------------------------------


def _joined(rank: int, directory: Path) -> None:
    """A rank whose optimizer keeps its own copy. Writes the outcome to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    model = small()
    optimizer = Masters(model.parameters())
    gossipdp.attach(model, optimizer, home=directory)
    met = ""
    try:
        train(model, optimizer, 1)
    except ConfigError as error:
        met = error.code
    (directory / f"{rank}.json").write_text(json.dumps(met))
    dist.destroy_process_group()


@pytest.mark.processes
@pytest.mark.long
def test_every_rank_of_a_group_is_told(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, anchor=anchor_of(small(1)))
    with daemon.running():
        torch.multiprocessing.spawn(_joined, (tmp_path,), nprocs=2)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == ["GD-317"] * 2
    assert not submits(daemon)
    daemon.server.close()


def test_one_step_that_repeats_what_a_correction_took_back_is_none_of_master_weights() -> None:
    """As against a partner that has hardly moved: the correction takes a step back, and the next one makes it again."""
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(4)])
    optimizer = Masters(model.parameters())
    layout = MasterWeights(model, [optimizer])
    change = torch.full((4 * 256,), 0.01)
    told = []
    for _ in range(2):
        layout.add(0, -change)
        layout.stepping()
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.01
        told.append(layout.undone())
    assert told == [False, True]
