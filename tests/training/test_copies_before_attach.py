"""Copies of the model from before `attach`: they do not get the network's values, and a warning says so."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gossipdp
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, vector


def averaged(model: nn.Module) -> nn.Module:
    return AveragedModel(model)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "make copies after attach" in each.getMessage()]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def joined(tmp_path: Path) -> LedgerDaemon:
    """A daemon that has another model."""
    return LedgerDaemon(tmp_path, anchor=vector(small(1)).astype("float32"))


@pytest.mark.parametrize("made", [copy.deepcopy, averaged])
def test_a_joiner_with_an_ema_from_before_attach__is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, made: Callable[[nn.Module], nn.Module]
) -> None:
    model = small(2)
    kept = made(model)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        daemon = joined(tmp_path)
        attach(daemon, model, sgd(model)).detach()
        daemon.server.close()
    (message,) = said(caplog)
    assert "Sequential" in message and kept is not None


def test_a_joiner_with_a_target_network_of_one_of_its_modules__is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small(2)
    target = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        daemon = joined(tmp_path)
        with daemon.running():
            gossipdp.attach([model], sgd(model), home=tmp_path).detach()
        daemon.server.close()
    assert len(said(caplog)) == 1 and target is not None


def test_a_founder_a_copy_after_attach_and_a_module_of_other_values__are_nothing_to_speak_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = small(2), small(3)
    kept = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        daemon = LedgerDaemon(tmp_path)
        attach(daemon, model, sgd(model)).detach()
        del kept
        late = small(4)
        daemon.pump()
        peer = attach(daemon, late, sgd(late))
        copy.deepcopy(late)
        peer.detach()
        daemon.server.close()
    assert not said(caplog) and other is not None
