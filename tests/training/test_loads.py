"""The script loads weights into an attached model: the daemon says whether they stay."""

import copy
import io
import logging

import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.training import connection
from gossipdp.training.loads import Loads
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, train, vector


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY", 0.0)


def attached(daemon: LedgerDaemon) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attach(daemon, model, optimizer)
    return model, optimizer


def train_until_session(model: nn.Module, optimizer: torch.optim.Optimizer, daemon: LedgerDaemon, session: int) -> None:
    for _ in range(50):
        if daemon.session == session:
            return train(model, optimizer, 2, daemon.pump)
        train(model, optimizer, 1, daemon.pump)
    raise AssertionError("no new session")


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model[2]])
@pytest.mark.parametrize("steps", [0, 5])
def test_loaded_weights_give_way_to_the_networks_model(
    daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture, part: object, steps: int
) -> None:
    model, optimizer = attached(daemon)
    train(model, optimizer, steps, daemon.pump)
    before = vector(model)
    part(model).load_state_dict(part(small(5)).state_dict())  # type: ignore[operator]
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train_until_session(model, optimizer, daemon, 2)
    assert daemon.written.loaded and daemon.written.run == daemon.run
    assert abs(vector(model) - before).max() < 0.05
    assert caplog.text.count("GD-325 the script loaded weights while other hosts train") == 1


def test_write_in_place_before_the_first_backward_pass_is_a_load(daemon: LedgerDaemon) -> None:
    """As torch.distributed.checkpoint loads: it calls no hook of the module."""
    model, optimizer = attached(daemon)
    before = vector(model)
    with torch.no_grad():
        for one, other in zip(model.parameters(), small(5).parameters(), strict=True):
            one.copy_(other)
    train_until_session(model, optimizer, daemon, 2)
    assert daemon.written.loaded and abs(vector(model) - before).max() < 0.05


def test_parameters_that_have_moved_before_the_first_step_are_no_load(daemon: LedgerDaemon) -> None:
    model, optimizer = attached(daemon)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    train(model, optimizer, 5, daemon.pump)
    assert daemon.session == 1


def test_steps_of_several_optimizers_are_no_load(daemon: LedgerDaemon) -> None:
    model = small()
    optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.01) for place in (0, 2)]  # type: ignore[index]
    attach(daemon, model, optimizers)
    for _ in range(5):
        model(torch.ones(1, 20)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        daemon.pump()
    assert daemon.session == 1


def test_loaded_weights_stay_if_the_daemon_keeps_them(daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = attached(daemon)
    train(model, optimizer, 5, daemon.pump)
    other = small(5)
    model.load_state_dict(other.state_dict())
    daemon.keeps = True
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train_until_session(model, optimizer, daemon, 2)
    assert abs(vector(model) - vector(other)).max() < 0.05 and daemon.began is not None
    assert "GD-325 the weights that the script loaded are the model now" in caplog.text


def test_weights_that_are_put_back_before_the_next_step_are_no_load(daemon: LedgerDaemon) -> None:
    """An evaluation with averaged weights."""
    model, optimizer = attached(daemon)
    train(model, optimizer, 5, daemon.pump)
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(small(5).state_dict())
    model.load_state_dict(kept)
    train(model, optimizer, 10, daemon.pump)
    assert daemon.session == 1


def test_load_while_the_daemon_is_gone_is_told_to_the_next_one(daemon: LedgerDaemon) -> None:
    model, optimizer = attached(daemon)
    train(model, optimizer, 5, daemon.pump)
    home = daemon.server.path.parent
    daemon.server.close()
    train(model, optimizer, 1)
    model.load_state_dict(small(5).state_dict())
    train(model, optimizer, 1)
    again = LedgerDaemon(home, anchor=daemon.a)
    train_until_session(model, optimizer, again, 1)
    assert again.written.loaded
    again.server.close()


def test_copies_of_the_model_report_no_load_and_a_saved_one_needs_no_gossipdp() -> None:
    model = small()
    loads = Loads(model)
    copy.deepcopy(model).load_state_dict(model.state_dict())
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"gossipdp" not in saved.getvalue()
    saved.seek(0)
    again = torch.load(saved, weights_only=False)
    again.load_state_dict(model.state_dict())
    assert not loads.noticed and equal(again, model)
    loads.close()
    model.load_state_dict(again.state_dict())
    assert not loads.noticed


def test_loop_whose_first_backward_pass_updates_the_weights_itself_is_no_load(daemon: LedgerDaemon) -> None:
    """As LOMO: a gradient's hook steps on the gradients before it. The last layer's gradient comes first."""
    model = small()
    parameters = list(model.parameters())

    def update(gradient: torch.Tensor) -> torch.Tensor:
        for each in parameters:
            if each.grad is not None:
                each.data.sub_(0.01 * each.grad)
                each.grad = None
        return gradient

    for each in parameters:
        each.register_hook(update)  # type: ignore[no-untyped-call]
    with daemon.running():
        peer = gossipdp.attach(model, home=daemon.server.path.parent)
    for _ in range(5):
        model(torch.ones(1, 20)).sum().backward()
        update(torch.zeros(0))
        peer.step()
        daemon.pump()
    assert daemon.session == 1
