"""Which optimizers attach takes: one or several whose steps it sees. A wrong one is refused, and nothing stays."""

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
from gossipdp.errors import ConfigError, GossipdpError
from gossipdp.runtime import link as links
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, submits, train, vector

Optimizer = torch.optim.Optimizer


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def lbfgs(model: nn.Module) -> Optimizer:
    return torch.optim.LBFGS(model.parameters())


@pytest.mark.parametrize("size", [1e-3, 0.0])
def test_correction_between_two_steps_of_lbfgs__its_memory_of_curvature_begins_anew(
    daemon: LedgerDaemon, size: float
) -> None:
    model = small()
    optimizer = lbfgs(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 1, daemon.pump)
    daemon.mix(np.full(daemon.region.size, size, np.float32))
    daemon.seal()
    before = vector(model)
    train(model, optimizer, 1, daemon.pump, seed=8)
    assert daemon.drained == bool(size) and not np.array_equal(before, vector(model))
    assert bool(optimizer.state) == (not size)
    train(model, optimizer, 1, daemon.pump, seed=9)
    (state,) = optimizer.state.values()
    assert state["n_iter"] == (20 if size else 60)
    peer.detach()


# -- wrong ones ---------------------------------------------------------------------------------------------------


class DeepSpeedZeroOptimizer:
    """Like DeepSpeed's: no torch optimizer itself, with one inside for another copy of the parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class DeepSpeedOptimizerWrapper(Optimizer):
    """Like Accelerate's wrapper."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer


class Shell(Optimizer):
    """Forwards its steps, without hooks of its own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.inner, self.param_groups = optimizer, optimizer.param_groups


class HalfShell(Optimizer):
    """As Magma of pytorch_optimizer: has hooks of its steps, and none of the others."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.base, self.param_groups = optimizer, optimizer.param_groups
        self._optimizer_step_pre_hooks = self._optimizer_step_post_hooks = {}  # type: ignore[assignment]


class Noam:
    """A schedule around an optimizer, as in the annotated transformer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._step, self.optimizer = 0, optimizer


class Several:
    """Steps with several."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.all = list(optimizers)


class Outer:
    """A wrapper of a wrapper."""

    def __init__(self, wrapped: object) -> None:
        self.wrapped = wrapped


WRONG: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "none": (lambda model: None, "NoneType"),
    "deepspeed's": (lambda model: DeepSpeedZeroOptimizer(sgd(model)), "DeepSpeedZeroOptimizer"),
    "accelerate's of deepspeed": (lambda model: DeepSpeedOptimizerWrapper(sgd(model)), "DeepSpeedOptimizerWrapper"),
    "a shell": (lambda model: Shell(sgd(model)), "Shell"),
    "the model": (lambda model: model, "Sequential"),
    "of another model": (lambda model: torch.optim.AdamW(small().parameters()), "AdamW of 4 parameters"),
    "of a copy of the parameters": (lambda model: sgd(small().double()), "SGD of 4 parameters"),
    "an empty list": (lambda model: [], "none in the sequence"),
    "one of them another model's": (lambda model: [sgd(model), sgd(small(1))], "SGD of 4 parameters"),
    "both on one parameter": (lambda model: [sgd(model), torch.optim.AdamW(model[2].parameters())], "SGD, AdamW"),
    "one of them none": (lambda model: [sgd(model), "adam"], "builtins.str"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_optimizer_is_gd_317_and_a_right_attach_follows(daemon: LedgerDaemon, wrong: str) -> None:
    make, seen = WRONG[wrong]
    model = small()
    with pytest.raises(ConfigError, match="GD-317") as caught:
        attach(daemon, model, make(model))
    assert seen in caught.value.seen and caught.value.do
    assert not daemon.events, "it is told before anything is begun"
    optimizer = sgd(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 2, daemon.pump)
    assert peer.steps == 2 and submits(daemon) == [(1, 1)] * 2
    peer.detach()


def post_local(model: nn.Module) -> Any:
    from torch.distributed.optim import PostLocalSGDOptimizer

    return PostLocalSGDOptimizer(sgd(model), None)  # type: ignore[arg-type]


HINTS: dict[str, Callable[[nn.Module], Any]] = {
    "optimizer.inner": lambda model: Shell(sgd(model)),
    "optimizer.base": lambda model: HalfShell(sgd(model)),
    "optimizer.optimizer": lambda model: Noam(sgd(model)),
    "optimizer.all": lambda model: Several(sgd(model[0]), sgd(model[2])),  # type: ignore[index]
    "optimizer.wrapped.optimizer": lambda model: Outer(Noam(sgd(model))),
    "optimizer.optim": post_local,
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # what torch itself uses
@pytest.mark.parametrize("inner", HINTS)
def test_a_wrapper_of_an_optimizer_is_told_the_name_of_the_inner_one(inner: str) -> None:
    model = small()
    with pytest.raises(ConfigError, match="GD-317") as caught:
        gossipdp.attach(model, HINTS[inner](model))
    assert f"attach(model, {inner})" in caught.value.do


def test_an_optimizer_of_what_is_frozen_is_told(daemon: LedgerDaemon) -> None:
    model = small()
    frozen = torch.optim.SGD(model[0].requires_grad_(False).parameters(), lr=0.1)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="GD-317"):
        attach(daemon, model, frozen)


def test_a_wrong_optimizer_is_told_with_gossip_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model = small()
    with pytest.raises(ConfigError, match="GD-317"):
        gossipdp.attach(model, DeepSpeedZeroOptimizer(sgd(model)))  # type: ignore[arg-type]


@pytest.mark.parametrize("why", ["no model in time", "refused"])
def test_an_attach_that_failed_leaves_the_daemon_to_the_next(daemon: LedgerDaemon, why: str) -> None:
    feed = daemon.feed

    def refuse(event: links.LinkEvent) -> None:
        if isinstance(event, links.ModelWritten):
            daemon.server.refuse("GD-301", "this model is not the network's", "parameter 0 ...", "train the other")
        else:
            feed(event)

    daemon.has_model = False
    if why == "refused":
        daemon.feed = refuse  # type: ignore[method-assign]
    model = small()
    optimizer = sgd(model)
    with daemon.running(), pytest.raises(GossipdpError, match=r"GD-106|GD-301") as held:
        gossipdp.attach(model, optimizer, home=daemon.server.path.parent, timeout=0.2)
    assert not optimizer._optimizer_step_post_hooks
    daemon.feed, daemon.has_model = feed, True  # type: ignore[method-assign]
    peer = attach(daemon, model, optimizer)
    assert not peer.alone and held.value.__traceback__ is not None, "all that failed is still there"
    train(model, optimizer, 2, daemon.pump)
    assert peer.steps == 2 and submits(daemon) == [(1, 1)] * 2
    peer.detach()


# -- several ------------------------------------------------------------------------------------------------------


def two(model: nn.Module) -> list[Optimizer]:
    """One optimizer for the matrices, one for the rest."""
    matrices = [each for each in model.parameters() if each.dim() == 2]
    rest = [each for each in model.parameters() if each.dim() != 2]
    kind = getattr(torch.optim, "Muon", torch.optim.RMSprop)
    return [kind(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]


class Both:
    """Steps with one after the other, as in a loop with both."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers

    def zero_grad(self) -> None:
        for each in self._optimizers:
            each.zero_grad()

    def step(self) -> None:
        for each in self._optimizers:
            each.step()


def test_several_optimizers_are_one_step_and_what_is_handed_over_is_after_the_last(daemon: LedgerDaemon) -> None:
    models = [small(), small()]
    pairs = [two(model) for model in models]
    peer = attach(daemon, models[0], pairs[0], every=2, samples_per_step=8)  # type: ignore[arg-type]
    for model, pair in zip(models, pairs, strict=True):
        train(model, Both(pair), 4, daemon.pump)  # type: ignore[arg-type]
    assert equal(*models), "bit for bit the bare optimizers"
    assert (peer.steps, peer.clock, peer.network_samples) == (4, 4, 32)
    assert submits(daemon) == [(2, 16)] * 2
    assert daemon.last is not None and np.array_equal(daemon.last, vector(models[0]).astype(np.float32))
    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    for step, each in enumerate(pairs[0]):
        before = vector(models[0])
        for parameter in models[0].parameters():
            parameter.grad = None
        each.step()
        assert np.array_equal(vector(models[0]), before) == (step == 0), "corrections come after the last one's step"
    peer.detach()
    assert not any(each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks for each in pairs[0])


def test_optimizer_that_steps_last_on_parameters_that_others_share__their_steps_count_with_its_own(
    daemon: LedgerDaemon,
) -> None:
    model = small()
    first, last = torch.optim.AdamW(model[2].parameters()), sgd(model)
    peer = attach(daemon, model, last, every=2)
    for _ in range(3):
        for optimizer in (first, last):
            train(model, optimizer, 1)
        daemon.pump()
    peer.detach()
    daemon.pump()
    assert peer.steps == 3 and submits(daemon) == [(2, 2), (1, 1)]
    assert daemon.last is not None and np.array_equal(daemon.last, vector(model))


def test_the_copy_of_a_snapshot_is_done_before_any_of_several_steps(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    pair = two(model)
    peer = attach(daemon, model, pair, every=1)  # type: ignore[arg-type]
    said: list[str] = []
    for number, each in enumerate(pair):
        each.register_step_post_hook(lambda *_, number=number: said.append(f"step {number}"))
    monkeypatch.setattr(peer._layout, "before_step", lambda: said.append("waits"))
    train(model, Both(pair), 1, daemon.pump)  # type: ignore[arg-type]
    assert said == ["waits", "step 0", "waits", "step 1"]
    peer.detach()


def test_the_state_of_several_is_saved_and_loaded_as_one(daemon: LedgerDaemon, tmp_path: Path) -> None:
    model = small()
    pair = two(model)
    peer = attach(daemon, model, pair, every=100)  # type: ignore[arg-type]
    train(model, Both(pair), 3)  # type: ignore[arg-type]
    saved, again = peer.state_dict(), small()
    assert {key.partition("::")[0] for key in saved} == dict(model.named_parameters()).keys()
    again.load_state_dict(model.state_dict())
    fresh, other = two(again), LedgerDaemon(tmp_path / "other")
    second = attach(other, again, tuple(fresh), every=100)  # type: ignore[arg-type]
    second.load_state_dict(saved)
    for trained, optimizers in ((model, pair), (again, fresh)):
        train(trained, Both(optimizers), 3, seed=8)  # type: ignore[arg-type]
    assert equal(model, again)
    for each in (peer, second):
        each.detach()
    other.server.close()


# -- a step within a step -----------------------------------------------------------------------------------------


class Nested(torch.optim.AdamW):
    """Calls its base's `step`, which torch has wrapped, and raises after it now and then."""

    broken = False

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.broken:
            raise ZeroDivisionError
        return loss


def test_a_step_that_calls_its_bases_is_one(daemon: LedgerDaemon) -> None:
    torch.optim.AdamW(small().parameters())  # torch hooks the `step` of a class when one is made
    models = [small(), small()]
    optimizers = [Nested(model.parameters()) for model in models]
    peer = attach(daemon, models[0], optimizers[0], every=2, samples_per_step=8)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 4, daemon.pump)
    assert equal(*models)
    assert peer.steps == 4 and submits(daemon) == [(2, 16)] * 2
    assert daemon.last is not None and np.array_equal(daemon.last, vector(models[0]).astype(np.float32))
    peer.detach()


def test_a_step_that_raised_does_not_hide_those_after_it(daemon: LedgerDaemon) -> None:
    torch.optim.AdamW(small().parameters())
    model = small()
    optimizer = Nested(model.parameters())
    peer = attach(daemon, model, optimizer)
    optimizer.broken = True
    with pytest.raises(ZeroDivisionError) as held:
        train(model, optimizer, 1)
    optimizer.broken = False
    train(model, optimizer, 2, daemon.pump)
    assert peer.steps == 2 and submits(daemon) == [(1, 1)] * 2 and held.value.__traceback__ is not None
    peer.detach()


# -- a correction that comes late ---------------------------------------------------------------------------------


def test_sync__the_copy_of_the_snapshot_is_done_before_a_slot_that_comes_late_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settles(daemon: LedgerDaemon) -> None:
        daemon.mix(np.ones(daemon.region.size, np.float32))
        daemon.seal()

    daemon = LedgerDaemon(tmp_path, every=1, mode="sync", settles=settles)
    model = small()
    optimizer = sgd(model)
    peer = attach(daemon, model, optimizer)
    layout, said = peer._layout, list[str]()
    assert layout is not None
    for name in ("read", "before_step", "add"):
        call: Callable[..., Any] = getattr(layout, name)

        def note(*given: Any, name: str = name, call: Callable[..., Any] = call) -> Any:
            done = call(*given)
            said.append(name)
            return done

        monkeypatch.setattr(layout, name, note)
    with daemon.running():
        train(model, optimizer, 2)
    added = said.index("add")
    assert "before_step" in said[said.index("read") : added], said
    peer.detach()
    daemon.server.close()


# -- ranks --------------------------------------------------------------------------------------------------------


def _late_and_taken(rank: int, directory: Path) -> None:
    """A rank of a group that finds no model at first. Writes the outcome to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    model = small()
    pair = two(model)
    met: list[Any] = []
    errors: list[GossipdpError] = []
    for attempt, timeout in ((sgd(small()), None), (pair, 5.0), (pair, None)):
        try:
            peer = gossipdp.attach(model, attempt, home=directory, timeout=timeout)
        except GossipdpError as error:
            met.append(error.code)
            errors.append(error)  # and with it all that failed
    try:
        peer.load_state_dict({})
    except GossipdpError as error:
        met.append(error.code)
    train(model, Both(pair), 4)  # type: ignore[arg-type]
    saved = peer.state_dict()
    peer.load_state_dict(saved)
    again = peer.state_dict()
    met += [peer.steps, len(saved), all(torch.equal(again[name], value) for name, value in saved.items())]
    peer.detach()
    (directory / f"{rank}.json").write_text(json.dumps(met))
    dist.destroy_process_group()


@pytest.mark.processes
@pytest.mark.long
def test_a_group_that_failed_to_attach_leaves_the_daemon_to_the_next(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path)
    feed, daemon.has_model = daemon.feed, False

    def has_it_the_next_time(event: links.LinkEvent) -> None:
        feed(event)
        daemon.has_model |= isinstance(event, links.ModelWritten)

    daemon.feed = has_it_the_next_time  # type: ignore[method-assign]
    with daemon.running():
        torch.multiprocessing.spawn(_late_and_taken, (tmp_path,), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first[:4] == second[:4] == ["GD-317", "GD-106", "GD-608", 4], (
        "what another rank than the first saved is told"
    )
    assert first[5] and first[4] > 0 and second[4] == 0
    assert sum(steps for steps, _ in submits(daemon)) == 4
    daemon.server.close()
