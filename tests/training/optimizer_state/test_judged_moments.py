"""Inherited moments are taken only for parameters whose gradients they fit."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.tensors.master_weights import MasterWeights
from tests.training.moments_daemon import MomentsDaemon
from tests.training.optimizer_state.inheritance import (
    Optimizer,
    adam,
    attach,
    die,
    flat,
    given,
    inherited,
    loss_of,
    model_of,
    schema_of,
    train,
    trained_and_gone,
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.Adam, {"amsgrad": True}), (torch.optim.AdamW, {"fused": True}), (torch.optim.RAdam, {})],
)
@pytest.mark.parametrize(("v", "m"), [(2.0**110, 0.0), (1e4, 300.0), (2.0**-60, 0.0)])
def test_parameters_with_moments_of_no_such_gradients_begin_as_new(
    daemons: Callable[..., MomentsDaemon],
    caplog: pytest.LogCaptureFixture,
    kind: type[Optimizer],
    options: dict[str, Any],
    v: float,
    m: float,
) -> None:
    """A source may send any v. Far too large, it makes the learning rate almost 0 for thousands of steps; far too
    small, it makes steps that are too long."""
    model = model_of()
    daemon = daemons(every=4, held=given(schema_of(model), v, m, 1000))
    optimizer = adam(model, kind, **options)
    peer = attach(daemon, model, optimizer)
    before = flat(model)
    with caplog.at_level(logging.WARNING):
        train(model, optimizer, 1, daemon)
    assert peer._optimizers.moments is not None and peer._optimizers.moments.steps == 1
    assert caplog.text.count("do not match its first gradients") == len(list(model.parameters()))
    state = optimizer.state[next(model.parameters())]
    assert int(state["step"]) == 1 and float(state["exp_avg_sq"].max()) < 1.0
    moved = np.abs(flat(model) - before)
    assert 3e-5 < moved.max() < 2 * 3e-3
    losses = train(model, optimizer, 300, daemon)
    assert np.mean(losses[-20:]) < 0.8 * losses[0]


def test_honest_moments_are_kept_at_the_first_gradient(
    daemons: Callable[..., MomentsDaemon], caplog: pytest.LogCaptureFixture
) -> None:
    """Also the moments of a parameter without a gradient yet, and where a step is skipped."""
    daemon = daemons(every=4)
    trained_and_gone(daemon)
    again = model_of(5)
    fresh = adam(again)
    peer = attach(daemon, again, fresh)
    caplog.clear()
    assert peer._optimizers.moments is not None
    parameters = list(again.parameters())
    loss_of(again, torch.Generator().manual_seed(1)).backward()
    parameters[1].grad = None
    assert parameters[2].grad is not None
    parameters[2].grad.fill_(math.inf)
    kept = [fresh.state[each]["exp_avg_sq"].clone() for each in parameters]
    peer._optimizers.moments.prove(fresh)
    assert peer._optimizers.moments._unproved == {1, 2}
    assert all(torch.equal(fresh.state[each]["exp_avg_sq"], old) for each, old in zip(parameters, kept, strict=True))
    for _ in range(9):
        peer._optimizers.moments.prove(fresh)
    assert not peer._optimizers.moments.unproved and not caplog.text


def test_gradient_that_a_scaler_has_scaled_for_the_kernels_is_judged_as_it_is() -> None:
    """GradScaler gives fused optimizers the scale and the scaled gradient."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = adam(model, fused=True)
    moments = AdamMoments.find(MasterWeights(model, (optimizer,)), model, (optimizer,))
    assert moments is not None
    inherited(moments, 1e-4, 1e-2, 1000)
    model.weight.grad = torch.full_like(model.weight, 65536.0 * 1e-5)
    optimizer.grad_scale = torch.tensor(65536.0)  # type: ignore[attr-defined]
    moments.prove(optimizer)
    state = optimizer.state[model.weight]
    assert int(state["step"]) == 0 and not state["exp_avg_sq"].any() and not state["exp_avg"].any()


def test_each_optimizer_judges_its_own_parameters_alone() -> None:
    """GradScaler unscales one optimizer's gradients right before its step. The next one's are still scaled then."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    first, second = (torch.optim.Adam(part.parameters()) for part in model)
    moments = AdamMoments.find(MasterWeights(model, (first, second)), model, (first, second))
    assert moments is not None
    inherited(moments, 1e-10, 1e-6, 1000)
    for part, scale in zip(model, (1.0, 65536.0), strict=True):
        part.weight.grad = torch.full_like(part.weight, scale * 1e-5)
    for _ in range(20):
        moments.prove(first)
    assert moments._unproved == {1}
    model[1].weight.grad.div_(65536.0)
    moments.prove(second)
    assert not moments.unproved and {
        int(state["step"]) for each in (first, second) for state in each.state.values()
    } == {1000}


def test_moments_of_double_precision_are_judged_as_others() -> None:
    model = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters())
    moments = AdamMoments.find(MasterWeights(model, (optimizer,)), model, (optimizer,))
    assert moments is not None
    inherited(moments, 1e-4, 1e-2, 1000)
    model.weight.grad = torch.full_like(model.weight, 1e-2)
    moments.prove(optimizer)
    assert not moments.unproved and int(optimizer.state[model.weight]["step"]) == 1000


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RAdam])
def test_moments_of_a_few_steps_are_not_taken(daemons: Callable[..., MomentsDaemon], kind: type[Optimizer]) -> None:
    """RAdam's first steps are as long as m: moments of one step could throw the model away."""
    model = model_of()
    daemon = daemons(every=4, held=given(schema_of(model), 4.0, 10.0, 9))
    optimizer = adam(model, kind)
    peer = attach(daemon, model, optimizer)
    assert not optimizer.state and peer._optimizers.moments is not None and not peer._optimizers.moments._arriving
    train(model, optimizer, 1, daemon)
    assert int(optimizer.state[next(model.parameters())]["step"]) == 1


def test_what_a_source_says_of_the_padding_is_in_no_snapshot(daemons: Callable[..., MomentsDaemon]) -> None:
    model = nn.Sequential(nn.Linear(20, 7), nn.BatchNorm1d(7), nn.Linear(7, 10))
    schema = schema_of(model)
    assert schema.padding.stop > schema.padding.start
    daemon = daemons(every=2, moments_every=0, held=given(schema, 4.0, 3.0, 1000))
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    assert optimizer.state
    train(model, optimizer, 3, daemon)
    assert daemon.last is not None and not daemon.last[schema.padding].any()


def test_state_that_is_loaded_into_the_optimizer_after_attach_is_counted(daemons: Callable[..., MomentsDaemon]) -> None:
    model = model_of()
    optimizer = adam(model)
    train(model, optimizer, 500)
    again = model_of(1)
    fresh, daemon = adam(again), daemons(every=4)
    peer = attach(daemon, again, fresh)
    fresh.load_state_dict(optimizer.state_dict())
    train(again, fresh, 12, daemon)
    assert daemon.held is not None and 500 < daemon.held.steps <= 512
    peer.detach()
    fresh.load_state_dict(optimizer.state_dict())


def test_optimizer_derived_from_adam_keeps_to_itself(daemons: Callable[..., MomentsDaemon]) -> None:
    """A subclass may keep more than Adam, which another peer's moments lack."""

    class Counting(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if not self.state[parameter]:
                        self.state[parameter].update(
                            step=torch.tensor(0.0),
                            exp_avg=torch.zeros_like(parameter),
                            exp_avg_sq=torch.zeros_like(parameter),
                            seen=0,
                        )
                    self.state[parameter]["seen"] += 1
            return super().step(closure)

    model = model_of()
    daemon = daemons(every=4, held=given(schema_of(model), 4.0, 3.0, 1000))
    optimizer = adam(model, Counting)
    attach(daemon, model, optimizer)
    train(model, optimizer, 12, daemon)
    assert optimizer.state[next(model.parameters())]["seen"] == 12 and not daemon.told


def test_what_stands_in_the_padding_of_a_model_does_no_harm(daemons: Callable[..., MomentsDaemon]) -> None:
    """An exchange may have moved it: it belongs to no tensor, but a negative second moment would be refused."""
    daemon = daemons(every=2)
    model = model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    random = np.random.default_rng(0)
    for step in range(12):
        daemon.region.buffers[0][:] = -1.0
        daemon.mix(1e-3 * random.standard_normal(daemon.region.size).astype(np.float32))
        daemon.seal()
        train(model, optimizer, 1, daemon, seed=step)
    assert daemon.held is not None and daemon.told


def test_parameters_that_were_never_trained_begin_as_new(daemons: Callable[..., MomentsDaemon]) -> None:
    daemon = daemons(every=4)
    model = model_of()
    optimizer = torch.optim.AdamW(list(model[0].parameters()), lr=1e-3)  # type: ignore[index]
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 20, daemon)
    die(peer)
    daemon.pump()
    again = model_of(1)
    fresh = adam(again)
    attach(daemon, again, fresh)
    assert [bool(fresh.state.get(parameter)) for parameter in again.parameters()] == [True] + [False] * 4
