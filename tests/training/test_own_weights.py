"""Optimizers that compute the weights from a point of their own are named at attach; all others are not."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from gossipdp.training.own_weights import DRAWN_BACK, drawn_back
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import Optimizer, attach, small, train

pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")

OPTIONS: dict[str, dict[str, Any]] = {"Ranger21": {"num_iterations": 1000}}


def made(cls: Any) -> Optimizer | None:
    """With the class's own settings. None where a class needs more than parameters."""
    try:
        optimizer: Optimizer = cls(list(small().parameters()), **OPTIONS.get(cls.__name__, {}))
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError):
        return None
    return optimizer


def test_of_all_optimizers_those_with_a_point_of_their_own_are_found() -> None:
    several = [cls for cls in vars(torch.optim).values() if isinstance(cls, type) and issubclass(cls, Optimizer)]
    several += map(pytorch_optimizer.load_optimizer, pytorch_optimizer.get_supported_optimizers())
    optimizers = {cls.__name__: made(cls) for cls in several}
    shares = {name: drawn_back(each) for name, each in optimizers.items() if each is not None}
    found = {name for name, share in shares.items() if share is not None and share > DRAWN_BACK}
    assert found == {"DAdaptAdaGrad", "DAdaptSGD", "FTRL", "MADGRAD", "Nero", "Ranger", "Ranger21", "SRMM"}
    rest = {name: share for name, share in shares.items() if name not in found and share is not None}
    averaging = {"A2Grad", "ScheduleFreeAdamW", "ScheduleFreeRAdam", "ScheduleFreeSGD"}
    assert len(rest) > 90 and max(share for name, share in rest.items() if name not in averaging) < 0.1


@pytest.mark.parametrize("steps", [0, 3])
def test_lookahead_around_another_optimizer_takes_half_of_a_change_back(steps: int) -> None:
    model = small()
    optimizer = pytorch_optimizer.Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, steps)
    assert drawn_back(optimizer) == pytest.approx(0.5, abs=0.01)


def test_optimizer_that_needs_a_closure_is_not_known() -> None:
    assert drawn_back(torch.optim.LBFGS(small().parameters())) is None


def test_looking_changes_neither_optimizer_nor_weights_nor_random_numbers_and_calls_no_hook() -> None:
    model, called = small(), []
    optimizer = pytorch_optimizer.MADGRAD(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    torch.manual_seed(5)
    random.seed(5)
    held = copy.deepcopy(everything(model, optimizer))
    assert drawn_back(optimizer) == pytest.approx(0.65, abs=0.01) and not called
    torch.testing.assert_close(everything(model, optimizer), held, rtol=0.0, atol=0.0)


def everything(model: nn.Module, optimizer: Optimizer) -> tuple[object, ...]:
    drawn = torch.tensor(random.getstate()[1], dtype=torch.int64)
    return [*optimizer.state_dict()["state"].values()], [*model.parameters()], torch.get_rng_state(), drawn


def test_attach_names_it_here_and_on_the_daemons_side(daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture) -> None:
    for optimizer in (torch.optim.AdamW, pytorch_optimizer.AdaBelief):
        model = small()
        attach(daemon, model, optimizer(model.parameters(), lr=1e-3)).detach()
    assert "GD-327" not in caplog.text
    model = small()
    peer = attach(daemon, model, pytorch_optimizer.MADGRAD(model.parameters(), lr=1e-3))
    daemon.pump(0.1)
    (told,) = [each for each in daemon.events if isinstance(each, links.Told)]
    assert "GD-327" in caplog.text and told.code == "GD-327" and not told.exit
    assert "MADGRAD undid 65% of a change within 10 steps" in told.text
    peer.detach()
