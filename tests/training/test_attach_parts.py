"""attach() of several modules, and parameters that an optimizer trains and the attached model does not hold."""

import logging
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from gossipdp.errors import MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.training.tensors.parts import as_one
from gossipdp.training.tensors.schema import exchanged
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, train


class Loss(nn.Module):
    """A loss with weights of its own, like ArcFace."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.ones(10, 10))


def names(schema: Schema | None) -> list[str]:
    assert schema is not None
    return [entry.name for entry in schema.entries]


def trained(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for each in modules for parameter in each.parameters()], lr=0.1)


@pytest.mark.parametrize("several", ["a list", "a mapping"])
def test_several_modules_are_attached_as_one_with_names_by_place_or_key(
    daemon: LedgerDaemon, several: str, caplog: pytest.LogCaptureFixture
) -> None:
    net, loss = small(), Loss()
    wrapped: Any = [nn.DataParallel(net), loss]
    keys = ["0", "1"]
    if several == "a mapping":
        keys = ["train", "with loss"]
        wrapped = OrderedDict(zip(keys, wrapped, strict=True))
    peer = attach(daemon, wrapped, trained(net, loss))
    expected = [*(f"{keys[0]}.{name}" for name, _ in net.named_parameters()), f"{keys[1]}.centers"]
    assert names(daemon.schema) == expected
    assert "GD-319" not in caplog.text
    peer.detach()


def test_a_mapping_in_another_order_is_the_same_model() -> None:
    parts = {"net": small(), "loss": Loss()}
    turned = dict(reversed(parts.items()))
    assert exchanged(as_one(parts))[0] == exchanged(as_one(turned))[0]


@pytest.mark.parametrize("wrong", [[], {}, "model", None, [None], {"a.b": nn.Linear(1, 1)}, {"": nn.Linear(1, 1)}])
def test_what_is_no_module_is_gd_305(wrong: Any) -> None:
    with pytest.raises(MismatchError, match="GD-305"):
        as_one(wrong)


@pytest.mark.parametrize("named", [False, True])
def test_parameters_that_the_optimizer_trains_and_the_model_does_not_hold_are_named(
    daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    net, loss = small(), Loss()
    frozen = nn.Linear(2, 2).requires_grad_(False)
    every = [*net.named_parameters(), *frozen.named_parameters(), ("loss.centers", loss.centers)]
    groups = every if named else [{"params": [parameter]} for _, parameter in every]
    with caplog.at_level(logging.WARNING, "gossipdp"):
        attach(daemon, net, torch.optim.SGD(groups, lr=0.1)).detach()  # type: ignore[arg-type]
    (said,) = [record.getMessage() for record in caplog.records if "GD-319" in record.getMessage()]
    assert ("loss.centers" if named else "parameter 0 of group 6 (10, 10)") in said
    assert "does not hold: 1," in said and "attach([model, loss], optimizer)" in said


@pytest.mark.parametrize("how", ["added to the optimizer", "in an optimizer made anew"])
def test_a_parameter_outside_the_model_that_comes_after_attach_is_named(
    daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    net, loss = small(), Loss()
    optimizer = trained(net)
    peer = attach(daemon, net, optimizer)
    if how == "added to the optimizer":
        optimizer.add_param_group({"params": loss.parameters()})
    else:
        optimizer = trained(net, loss)
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train(net, optimizer, 3)
    assert caplog.text.count("GD-319") == 1 and "(10, 10)" in caplog.text
    peer.detach()
