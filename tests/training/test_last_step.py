"""The last snapshot is what the last step left, and not what a script has written there since."""

import copy
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from gossipdp.training import attachment
from gossipdp.training.last_step import LastStep
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train, vector


def averaged_by_data(model: nn.Module, average: nn.Module) -> None:
    """As a callback that writes an EMA at the end of training does."""
    for mine, other in zip(model.parameters(), average.parameters(), strict=True):
        mine.data.copy_(other.data)


def best_loaded(model: nn.Module, best: nn.Module) -> None:
    model.load_state_dict(best.state_dict())


def memory_changed(model: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data.clone()


def layer_replaced(model: nn.Module, other: nn.Module) -> None:
    model[2] = copy.deepcopy(other)[2]  # type: ignore[index,operator]


def nothing(model: nn.Module, other: nn.Module) -> None:
    """Averaged weights for an evaluation, and the trained ones back."""
    kept = copy.deepcopy(model)
    averaged_by_data(model, other)
    averaged_by_data(model, kept)


@pytest.mark.parametrize(
    ("change", "handed"),
    [
        (averaged_by_data, False),
        (best_loaded, False),
        (memory_changed, False),
        (layer_replaced, False),
        (nothing, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_written_after_the_last_step_are_not_handed_over(
    daemon: LedgerDaemon,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[nn.Module, nn.Module], None],
    handed: bool,
    dtype: torch.dtype,
) -> None:
    model, other = small(), small(1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(dtype)
    peer = attach(daemon, model, optimizer, every=4)
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        daemon.pump()
    trained = vector(model).astype(np.float32)
    with caplog.at_level(logging.WARNING, "gossipdp"):
        change(model, other)
        peer.detach()
    daemon.pump()
    assert submits(daemon) == [(4, 4), (2, 2)][: 1 + handed]
    assert not handed or (daemon.last is not None and np.array_equal(daemon.last, trained))
    assert ("the last 2 steps are not handed over" in caplog.text) == (not handed)
    told = [event.text for event in daemon.events if isinstance(event, links.Told) and event.code == "GD-325"]
    assert ["the last 2 steps are not handed over" in text for text in told] == [True] * (not handed)


def clipped(model: nn.Module, _other: nn.Module) -> None:
    """As WGAN's scripts clip the weights of the critic after each step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.05, 0.05)


def shrunk(model: nn.Module, _other: nn.Module) -> None:
    """Weight decay of a script's own."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - 1e-3)


@pytest.mark.parametrize("habit", [clipped, shrunk])
@pytest.mark.parametrize(("at_the_end", "handed"), [(None, True), (averaged_by_data, False), (best_loaded, False)])
def test_script_that_writes_weights_after_each_step__the_last_steps_are_handed_over_unless_others_are_loaded(
    daemon: LedgerDaemon,
    caplog: pytest.LogCaptureFixture,
    habit: Callable[[nn.Module, nn.Module], None],
    at_the_end: Callable[[nn.Module, nn.Module], None] | None,
    handed: bool,
) -> None:
    model, other = small(), small(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    peer = attach(daemon, model, optimizer, every=4)
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        daemon.pump()
        habit(model, other)
    with caplog.at_level(logging.WARNING, "gossipdp"):
        if at_the_end is not None:
            at_the_end(model, other)
        trained = vector(model).astype(np.float32)
        peer.detach()
    daemon.pump()
    assert submits(daemon) == [(4, 4), (2, 2)][: 1 + handed]
    assert not handed or (daemon.last is not None and np.array_equal(daemon.last, trained))
    assert ("the last 2 steps are not handed over" in caplog.text) == (not handed)


def test_weights_that_were_written_once_before_a_step_may_not_be_written_at_the_end() -> None:
    parameters = [torch.ones(3)]
    last = LastStep(parameters)
    for written in (0.5, 0.0):
        last.over()
        parameters[0].sub_(written)
        last.begins()
    last.over()
    parameters[0].sub_(0.1)
    assert not last.stands()
    last.begins()
    last.over()
    parameters[0].sub_(0.1)
    assert last.stands(), "twice is a habit"


def test_nan_and_parameters_without_numbers_are_what_they_were() -> None:
    parameters = [torch.full((3, 3), torch.nan), torch.zeros(0), torch.tensor(1.0), torch.ones(5, dtype=torch.bfloat16)]
    last = LastStep(parameters)
    assert last.stands(), "no step yet"
    last.over()
    assert last.stands()
    parameters[3].mul_(2.0)
    assert not last.stands()
    last.over()
    assert last.stands()


def test_training_that_ends_without_a_change_hands_its_last_steps_over(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peer = attach(daemon, model, optimizer, every=4)
    train(model, optimizer, 6, daemon.pump)
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 20))
    peer.detach()
    daemon.pump()
    assert submits(daemon) == [(4, 4), (2, 2)]


@pytest.mark.parametrize(("size", "seconds"), [(1000, 2.0), (1_000_000_000, 12.0)])
def test_daemon_of_a_large_model_has_longer_to_take_the_last_steps(
    monkeypatch: pytest.MonkeyPatch, size: int, seconds: float
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(attachment, "wait_for_last_snapshot", lambda session, within: waits.append(within))
    layout: Any = SimpleNamespace(sharded=False, schema=SimpleNamespace(size=size))
    session: Any = None
    attachment.hand_over(session, layout, None)
    assert waits == [pytest.approx(seconds, abs=0.001)]
