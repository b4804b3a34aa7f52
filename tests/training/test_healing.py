"""Training that has turned NaN gets the network's model and a new optimizer state, once."""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.errors import DataError
from gossipdp.training import connection
from gossipdp.training.healing import AGAIN, Healing
from gossipdp.training.optimizer_state.state_dict import reset_optimizers
from simulations.processes.namespaces.processes import environment
from simulations.processes.progress import until
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, train, vector

RANK = Path(__file__).with_name("host_of_nan.py")


class Lazy(torch.optim.Optimizer):
    """A third-party optimizer: it makes each parameter's state itself, and keeps a number in its groups."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1, "scale": 1.0})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"], state["seen"] = parameter.clone(), 0
                state["seen"] += 1
                group["scale"] *= (
                    float(parameter.grad.abs().mean()) ** 0.0 if parameter.grad.isfinite().all() else math.nan
                )
                parameter -= group["lr"] * group["scale"] * parameter.grad


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY", 0.0)


def poison(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step on a bad sample."""
    optimizer.zero_grad()
    (model(torch.full((8, 20), math.nan))).mean().backward()
    optimizer.step()


def finite(model: nn.Module) -> bool:
    return all(bool(each.isfinite().all()) for each in model.parameters())


def train_until(
    model: nn.Module, optimizer: torch.optim.Optimizer, daemon: LedgerDaemon, done: Callable[[], bool]
) -> int:
    """Train until `done`, 50 steps at most. Returns the steps."""
    for steps in range(50):
        if done():
            return steps
        train(model, optimizer, 1, daemon.pump)
    raise AssertionError("not within 50 steps")


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        Lazy,
    ],
    ids=["adamw", "momentum", "adagrad", "lazy"],
)
def test_three_snapshots_in_a_row_refused__model_loaded_and_optimizer_reset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., torch.optim.Optimizer]
) -> None:
    daemon = LedgerDaemon(tmp_path, every=2, heal_after=3)
    model = small()
    optimizer = make(model.parameters())
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 6, daemon.pump)
    anchor, at = daemon.a, peer.steps
    poison(model, optimizer)
    assert anchor is not None and not finite(model)
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train_until(model, optimizer, daemon, lambda: finite(model))
    # The boundary of the step loaded the model, so it is the anchor's, to the bit.
    assert np.array_equal(vector(model).astype(np.float32), anchor) and not peer.alone
    assert "3 snapshots in a row were not used: training loads the network's model again" in caplog.text
    assert peer.lost_steps == peer.steps - at and peer.clock == daemon.clock
    train(model, optimizer, 6, daemon.pump)
    assert finite(model) and not np.array_equal(vector(model).astype(np.float32), anchor), "it trains on"
    assert all(
        bool(value.isfinite().all())
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    )
    assert all(
        math.isfinite(group["lr"]) and math.isfinite(group.get("scale", 1.0)) for group in optimizer.param_groups
    )
    daemon.server.close()


def test_one_refused_snapshot_that_the_next_makes_good__nothing_is_loaded(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=1, heal_after=3)
    models = [small(), small()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    peer = attach(daemon, models[0], optimizers[0])
    for model, optimizer in zip(models, optimizers, strict=True):
        kept = [each.detach().clone() for each in model.parameters()]
        for _ in range(2):
            poison(model, optimizer)
            daemon.pump()
        with torch.no_grad():
            for each, value in zip(model.parameters(), kept, strict=True):
                each.copy_(value)
        train(model, optimizer, 3, daemon.pump)
    assert equal(*models) and peer.lost_steps == 0
    daemon.server.close()


def test_nan_that_comes_again_soon__training_ends_with_GD_403(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=1, heal_after=3)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    poison(model, optimizer)
    train_until(model, optimizer, daemon, lambda: finite(model))
    train(model, optimizer, 5, daemon.pump)
    poison(model, optimizer)
    with pytest.raises(DataError, match="GD-403"):
        train(model, optimizer, 20, daemon.pump)
    assert peer.alone
    train(model, optimizer, 2)  # a script that goes on all the same trains alone
    daemon.server.close()


def test_switched_off__training_goes_on_with_nan(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=1, heal_after=0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    poison(model, optimizer)
    train(model, optimizer, 20, daemon.pump)
    assert not finite(model) and not peer.alone and peer.lost_steps == 0
    daemon.server.close()


@pytest.mark.parametrize(("rounds", "hopeless"), [(AGAIN - 3, True), (AGAIN - 2, False)])
def test_nan_that_comes_again_after_many_good_rounds__is_healed_again(rounds: int, hopeless: bool) -> None:
    healing = Healing()
    healing.terms(3)
    for _ in range(3):
        healing.judged(finite=False)
    assert healing.due
    healing.loaded()
    for _ in range(rounds):
        healing.judged(finite=True)
    for _ in range(3):
        healing.judged(finite=False)
    assert (healing.hopeless, healing.due) == (hopeless, not hopeless)


def test_optimizer_that_was_reset_steps_as_a_new_one() -> None:
    models = [small(), small()]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
    poison(models[0], optimizers[0])
    models[0].load_state_dict(models[1].state_dict())
    reset_optimizers(models[0], [optimizers[0]])
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 5)
    assert equal(*models)


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_of_a_host_load_the_model_together_and_end_together(tmp_path: Path, kind: str) -> None:
    daemon = LedgerDaemon(tmp_path, every=2, heal_after=3)
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(tmp_path), kind], env=environment(RANK=str(rank), WORLD_SIZE="2")
        )
        for rank in range(2)
    ]
    try:
        until(
            "the ranks end",
            lambda: all(process.poll() is not None for process in processes),
            moves=lambda: len(daemon.events),
            meanwhile=lambda: daemon.pump(0.02),
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
        daemon.server.close()
    assert [process.returncode for process in processes] == [0, 0]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["code"] == second["code"] == "GD-403"
    assert first["healed"] == second["healed"] > 6 and first["trail"] == second["trail"] and len(first["trail"]) > 20
