"""peer.state_dict() and its way back: saved state loads, other state is refused, and neither takes a step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from gossipdp.errors import DataError
from gossipdp.training.optimizer_state.state_dict import optimizer_tensors, restore_optimizer
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, submits, train

Optimizer = torch.optim.Optimizer


def moments(optimizer: Optimizer) -> list[torch.Tensor]:
    return [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]


# -- there and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_moments_are_saved_as_safetensors_and_training_goes_on_with_them(
    daemon: LedgerDaemon, tmp_path: Path, make: Callable[..., Optimizer]
) -> None:
    model = small()
    optimizer = make(model.parameters())
    peer = attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 5)
    save_file(peer.state_dict(), tmp_path / "moments.safetensors")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer, 3, seed=8)
    peer.detach()
    again = small()
    again.load_state_dict(weights)
    fresh = make(again.parameters())
    other = LedgerDaemon(tmp_path / "other")
    peer = attach(other, again, fresh, every=100)
    peer.load_state_dict(load_file(tmp_path / "moments.safetensors"))
    assert peer.steps == 0 and other.snapshot == 0 and equal(again, _with(weights)), "making room is no step"
    train(again, fresh, 3, seed=8)
    assert equal(again, model)
    assert all(torch.equal(a, b) for a, b in zip(moments(fresh), moments(optimizer), strict=True))
    peer.detach()
    other.server.close()


def _with(weights: dict[str, torch.Tensor]) -> nn.Module:
    model = small()
    model.load_state_dict(weights)
    return model


class Unused(nn.Module):
    """A matrix that is trained, and one that requires gradients and gets none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Linear(20, 10, bias=False)
        self.pooler = nn.Linear(10, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(x)
        return result


def _matrices(model: nn.Module) -> Optimizer:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    return torch.optim.Muon([each for each in model.parameters() if each.dim() == 2], lr=0.01)


def _scheduled(model: nn.Module) -> Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.schedule = torch.optim.lr_scheduler.LinearLR(optimizer)  # type: ignore[attr-defined]
    return optimizer


class Counting(torch.optim.SGD):
    """Keeps Python numbers, and adds entries later, as third-party optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            kept["count"] = kept.get("count", 0) + 1
            if kept["count"] > 1:
                kept["late"] = torch.full((3,), float(kept["count"]))
        return super().step(closure)


@pytest.mark.parametrize(
    ("build", "make"),
    [
        pytest.param(small, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), id="sgd"),
        pytest.param(Unused, lambda model: torch.optim.AdamW(model.parameters()), id="unused"),
        pytest.param(small, lambda model: torch.optim.AdamW(model[2].parameters()), id="part"),
        pytest.param(Unused, _matrices, id="muon"),
        pytest.param(small, _scheduled, id="schedule"),
        pytest.param(small, lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, fused=True), id="fused"),
        pytest.param(small, lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01), id="adafactor"),
        pytest.param(small, lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01), id="adagrad"),
        pytest.param(small, lambda model: torch.optim.NAdam(model.parameters(), lr=0.01), id="nadam"),
        pytest.param(small, lambda model: Counting(model.parameters(), lr=0.1), id="numbers"),
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_process_can_load_what_it_saved(
    daemon: LedgerDaemon,
    tmp_path: Path,
    build: Callable[[], nn.Module],
    make: Callable[[Any], Optimizer],
    gradients: bool,
) -> None:
    def begin(home: Path, weights: dict[str, torch.Tensor]) -> tuple[Any, ...]:
        model = build()
        model.load_state_dict(weights)
        optimizer = make(model)
        ledger = LedgerDaemon(home)
        peer = attach(ledger, model, optimizer, every=100)
        if gradients:  # of a batch before the checkpoint was found
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        return model, optimizer, peer, ledger

    first = model, optimizer, peer, _ = begin(tmp_path / "first", build().state_dict())
    peer.load_state_dict(peer.state_dict())
    train(model, optimizer, 3)
    saved = peer.state_dict()
    peer.load_state_dict(saved)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    second = again, fresh, peer, _ = begin(tmp_path / "second", weights)
    peer.load_state_dict({name: saved[name] for name in sorted(saved)})
    assert equal(again, model) and peer.steps == 0
    for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
        restored, kept = fresh.state.get(mine, {}), optimizer.state.get(theirs, {})
        assert [*restored] == [*kept]
        for kind, value in kept.items():
            assert type(restored[kind]) is type(value), kind
            assert not isinstance(value, torch.Tensor) or restored[kind].dtype == value.dtype
    train(model, optimizer, 3, seed=8)
    train(again, fresh, 3, seed=8)
    assert equal(again, model)
    for *_, peer, ledger in (first, second):
        peer.detach()
        ledger.server.close()


def test_what_the_optimizer_knows_otherwise_than_by_its_groups_is_not_stepped_on() -> None:
    class Remembering(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.mine:  # type: ignore[attr-defined]
                if parameter.grad is not None:
                    parameter.data.add_(parameter.grad)
            return super().step(closure)

    model = small()
    optimizer = Remembering(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.mine = [*model.parameters()]  # type: ignore[attr-defined]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    kept = {f"{name}::momentum_buffer": torch.ones_like(each) for name, each in model.named_parameters()}
    restore_optimizer(model, [optimizer], kept)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), before, strict=True))
    assert all(each.grad is gradient for each, gradient in zip(model.parameters(), gradients, strict=True))
    assert [*optimizer_tensors(model, [optimizer])] == [*kept]


# -- no step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_a_state_that_is_asked_for_before_the_first_step_is_empty_and_takes_none(
    daemon: LedgerDaemon, make: Callable[..., Optimizer]
) -> None:
    models = [small(), small()]
    optimizers = [make(model.parameters()) for model in models]
    peer = attach(daemon, models[0], optimizers[0])
    assert peer.state_dict() == {}
    daemon.pump()
    assert peer.steps == peer.clock == 0 and not submits(daemon) and not optimizers[0].state
    peer.load_state_dict({})
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 1)
    assert equal(*models), "bit for bit the bare optimizer"
    assert peer.steps == 1
    peer.detach()


def test_states_of_plain_sgd_are_no_steps(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 3, daemon.pump)
    optimizer.zero_grad()
    assert peer.state_dict() == peer.state_dict() == {}
    peer.load_state_dict({})
    daemon.pump()
    assert peer.steps == 3 and submits(daemon) == [(1, 1)] * 3
    peer.detach()


def test_a_state_that_is_saved_does_not_change_with_the_next_step(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 2)
    saved = peer.state_dict()
    before = {name: value.clone() for name, value in saved.items()}
    train(model, optimizer, 2)
    assert all(torch.equal(value, before[name]) for name, value in saved.items())
    peer.load_state_dict(saved)
    train(model, optimizer, 2, daemon.pump)
    assert all(torch.equal(value, before[name]) for name, value in saved.items())
    peer.detach()


# -- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["one more", "no name", "another shape", "another kind", "nothing"])
def test_moments_of_another_model_are_gd_608(daemon: LedgerDaemon, change: str) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    peer = attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 2)
    tensors = peer.state_dict()
    name = next(key for key in tensors if key.endswith("exp_avg"))
    match change:
        case "one more":
            tensors["stranger::exp_avg"] = torch.zeros(3)
        case "no name":
            tensors["weight"] = torch.zeros(3)
        case "another shape":
            tensors[name] = torch.zeros(3, 5, 7)
        case "another kind":
            tensors[name.replace("exp_avg", "momentum_buffer")] = tensors.pop(name)
        case "nothing":
            tensors = {}
    before = [value.clone() for value in moments(optimizer)]
    with pytest.raises(DataError, match="GD-608"):
        peer.load_state_dict(tensors)
    assert all(torch.equal(a, b) for a, b in zip(moments(optimizer), before, strict=True))
    peer.detach()


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        (torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1)),
        (torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.AdamW),
        (torch.optim.AdamW, torch.optim.LBFGS),
        (torch.optim.AdamW, lambda p: torch.optim.Adagrad([*p][:2])),
    ],
)
def test_moments_of_another_optimizer_are_told_before_its_first_step(
    saved_by: Callable[..., Optimizer], loaded_by: Callable[..., Optimizer]
) -> None:
    model = small()
    optimizer = saved_by(model.parameters())
    train(model, optimizer, 2)
    saved = optimizer_tensors(model, [optimizer])
    with pytest.raises(DataError, match="GD-608"):
        restore_optimizer(model, [loaded_by(model.parameters())], saved)


def test_a_parameter_of_which_nothing_is_kept_begins_as_new() -> None:
    models = [small(), small()]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 2)
    kept = {k: v for k, v in optimizer_tensors(models[0], optimizers[:1]).items() if not k.startswith("2.")}
    restore_optimizer(models[1], optimizers[1:], kept)
    states = [optimizers[1].state.get(parameter) for parameter in models[1].parameters()]
    assert [bool(state) for state in states] == [True, True, False, False]
    train(models[1], optimizers[1], 1)
    assert int(optimizers[1].state[models[1][2].weight]["step"]) == 1  # type: ignore[index]


# -- states without names -----------------------------------------------------------------------------------------


def test_ranks_hear_of_a_state_where_their_own_parameters_are(
    group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL would use the current device, which may be rank 0's on all ranks."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_step(model, optimizer)
    saved, heard = optimizer_tensors(model, [optimizer]), list[Any]()
    monkeypatch.setattr("gossipdp.training.optimizer_state.state_dict._several", lambda: True)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda said, source, device=None: heard.append(device))
    restore_optimizer(model, [optimizer], saved)
    assert heard == [model.weight.device]


def train_step(model: nn.Module, optimizer: Optimizer) -> None:
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_the_state_of_lbfgs_is_gd_610(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    peer = attach(daemon, model, optimizer, every=100)
    assert peer.state_dict() == {}
    train(model, optimizer, 2)
    with pytest.raises(DataError, match="GD-610") as caught:
        peer.state_dict()
    assert caught.value.seen.startswith("LBFGS: ") and "own state_dict()" in caught.value.do
    train(model, optimizer, 1)
    assert peer.steps == 3
    peer.detach()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # what torch itself uses
def test_the_state_of_zero_is_gd_610(tmp_path: Path) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = small()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        train(model, optimizer, 1)
        for ask in (lambda: optimizer_tensors(model, [optimizer]), lambda: restore_optimizer(model, [optimizer], {})):
            with pytest.raises(DataError, match="GD-610") as caught:
                ask()
            assert caught.value.seen == "ZeroRedundancyOptimizer" and "consolidate_state_dict" in caught.value.do
    finally:
        dist.destroy_process_group()
