"""A moving average of the weights, as diffusers' EMAModel keeps it: tensors in a list, written in place."""

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import small, train, vector

DECAY = 0.9


class Average:
    """An average in a list of tensors."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [each.detach().clone() for each in model.parameters()]
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters: list[nn.Parameter]) -> None:
        self.optimization_step += 1
        for kept, each in zip(self.shadow_params, parameters, strict=True):
            kept.lerp_(each, 1 - DECAY if self.optimization_step > 1 else 1.0)


def of_diffusers(model: nn.Module) -> Average:
    diffusers = importlib.import_module("diffusers.training_utils")
    average: Average = diffusers.EMAModel(model.parameters(), decay=DECAY)
    return average


MISSING = importlib.util.find_spec("diffusers") is None
MADE = [Average, pytest.param(of_diffusers, marks=pytest.mark.skipif(MISSING, reason="diffusers is not installed"))]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def flat(average: Average) -> np.ndarray:
    return np.concatenate([each.double().reshape(-1).numpy() for each in average.shadow_params])


@pytest.mark.parametrize("made", MADE)
def test_an_average_that_is_attached_frozen__a_joiner_goes_on_with_it(tmp_path: Path, made: type[Average]) -> None:
    daemon = LedgerDaemon(tmp_path)
    averages = []
    for seed in (1, 2):
        model = small(seed)
        average, optimizer = made(model), sgd(model)
        parts = {"model": model, "ema": nn.ParameterList(average.shadow_params).requires_grad_(False)}
        with daemon.running():
            peer = gossipdp.attach(parts, optimizer, home=tmp_path, compare_frozen=False)
        daemon.pump()
        average.optimization_step = peer.clock
        if averages:
            assert np.array_equal(flat(average), averages[0]), "the founder's, at its last snapshot"
        for _ in range(1 if averages else 40):
            train(model, optimizer, 1, daemon.pump)
            before = flat(average)
            average.step(list(model.parameters()))
        averages.append(flat(average) if averages else before)
        with daemon.running():
            peer.detach()
        assert all(each.name.startswith("model.") for each in daemon.schema.entries), "the average is not exchanged"
    wide = np.linalg.norm(averages[0] - vector(model))
    assert 0 < np.linalg.norm(averages[1] - averages[0]) < 0.2 * wide, "the joiner's first step does not begin anew"
    daemon.server.close()


@pytest.mark.parametrize("made", MADE)
def test_an_average_of_the_script__it_is_of_the_corrected_weights(daemon: LedgerDaemon, made: type[Average]) -> None:
    model = small(1)
    optimizer = sgd(model)
    with daemon.running():
        peer = gossipdp.attach(model, optimizer, home=daemon.server.path.parent)
    daemon.pump()
    average = made(model)
    train(model, optimizer, 3, daemon.pump)
    before = vector(model)
    daemon.mix(np.full(daemon.a.size, 10.0, np.float32))
    while abs(vector(model) - before).max() < 5.0:
        daemon.seal()
        train(model, optimizer, 1, daemon.pump)
    average.step(list(model.parameters()))
    assert abs(flat(average) - vector(model)).max() < 1e-5, "its first step takes the weights as they are"
    with daemon.running():
        peer.detach()
