"""When a step is over, with optimizers that step each other, are made anew, or step inside the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.training.attachment import Attachment
from gossipdp.training.boundaries import TURN
from tests.codecs.moments_reference import decoded
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon
from tests.training.models import attach, equal, small, submits, train, vector
from tests.training.optimizer_state.inheritance import handed

Optimizer = torch.optim.Optimizer


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class Sharp(Optimizer):
    """SAM: climbs, then steps its base from where it stood."""

    def __init__(self, parameters: Any, base: Callable[[Any], Optimizer]) -> None:
        super().__init__(parameters, {})
        self.base = base(self.param_groups)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = parameter.data.clone()
            parameter.add_(parameter.grad, alpha=0.05)

    def descend(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["kept"]
        self.base.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


class Slow(Optimizer):
    """Lookahead: keeps slow weights, and moves them after its base's step, or when it is told to."""

    def __init__(self, parameters: Any, base: Optimizer | None = None) -> None:
        super().__init__(parameters, {})
        self.base = base

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.base is not None:
            self.base.step()


def descend(model: nn.Module, *steps: Callable[[], object], times: int = 6) -> None:
    """Loops of one backward pass and these calls."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(times):
        model.zero_grad()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        for step in steps:
            step()


# -- a step in a step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attached", ["outer", "base"])
@pytest.mark.parametrize("way", ["phases", "closure"])
def test_sam_by_phases_or_closure_attached_itself_or_its_base__each_loop_is_one_step(
    daemon: LedgerDaemon, attached: str, way: str
) -> None:
    model = small()
    sam = Sharp(model.parameters(), sgd)
    peer = attach(daemon, model, sam if attached == "outer" else sam.base)

    def again() -> None:
        model(torch.ones(8, 20)).square().mean().backward()

    if way == "phases":
        descend(model, sam.climb, again, sam.descend, daemon.pump)
    else:
        descend(model, lambda: sam.step(again), daemon.pump)
    # By phases its base takes the place of SAM with its second step.
    expected = 5 if (way, attached) == ("phases", "outer") else 6
    assert peer.steps == expected and submits(daemon) == [(1, 1)] * expected
    assert daemon.last is not None and np.array_equal(daemon.last, vector(model).astype(np.float32))
    peer.detach()


def test_a_wrapper_that_steps_the_followed_optimizer_is_one_step_and_one_beside_it_is_none(
    daemon: LedgerDaemon,
) -> None:
    model = small()
    base = sgd(model.parameters())
    wrapper, beside = Slow(model.parameters(), base), Slow(model.parameters())
    peer = attach(daemon, model, base)
    descend(model, wrapper.step, beside.step)
    descend(model, base.step, beside.step)
    assert peer.steps == 12 and peer._optimizers.all == (base,)
    peer.detach()


def test_a_step_that_raised_in_a_wrapper_is_not_counted_with_the_next_optimizers(daemon: LedgerDaemon) -> None:
    model = small()
    first, last = sgd(model[0].parameters()), sgd(model[2].parameters())  # type: ignore[index]
    peer = attach(daemon, model, [first, last])  # type: ignore[arg-type]

    class Broken(Slow):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            raise ZeroDivisionError

    broken = Broken(model.parameters(), last)
    with pytest.raises(ZeroDivisionError):
        descend(model, broken.step, times=1)
    descend(model, first.step, times=1)
    assert peer.steps == 0
    descend(model, last.step, times=1)
    assert peer.steps == 1
    peer.detach()


# -- several ------------------------------------------------------------------------------------------------------


def two(model: nn.Module) -> tuple[Optimizer, Optimizer]:
    return sgd(model[0].parameters()), sgd(model[2].parameters())  # type: ignore[index]


def test_optimizers_that_take_turns__steps_past_the_first_sixteen_of_a_turn_count(daemon: LedgerDaemon) -> None:
    model = small()
    first, last = two(model)
    peer = attach(daemon, model, [first, last], every=4)  # type: ignore[arg-type]
    descend(model, first.step, daemon.pump, times=TURN)
    assert peer.steps == 0
    descend(model, first.step, daemon.pump, times=8)
    assert peer.steps == 8 and submits(daemon) == [(4, 4)] * 2
    descend(model, last.step, daemon.pump, times=8)
    assert peer.steps == 16 and submits(daemon) == [(4, 4)] * 4
    peer.detach()


@pytest.mark.parametrize("more", [1, 2, TURN])
def test_a_critic_that_steps_more_often_than_its_generator__the_generators_steps_count(
    daemon: LedgerDaemon, more: int
) -> None:
    model = small()
    critic, generator = two(model)
    peer = attach(daemon, model, [critic, generator], every=4)  # type: ignore[arg-type]
    descend(model, *[critic.step] * more, generator.step, daemon.pump)
    assert peer.steps == 6
    peer.detach()


@pytest.mark.parametrize("before", [4, 6])
def test_a_loop_that_ends_between_the_steps_of_two_optimizers__what_one_has_stepped_is_handed_over(
    daemon: LedgerDaemon, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = small()
    critic, generator = two(model)
    peer = attach(daemon, model, [critic, generator], every=4)  # type: ignore[arg-type]
    descend(model, critic.step, generator.step, daemon.pump, times=before)
    descend(model, critic.step, times=2)
    peer.detach()
    daemon.pump()
    assert "not handed over" not in caplog.text
    assert sum(steps for steps, _ in submits(daemon)) == peer.steps == before + 1
    assert daemon.last is not None and np.array_equal(daemon.last, vector(model).astype(np.float32))


# -- made anew ----------------------------------------------------------------------------------------------------


def whole(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-3)]


def halves(model: Any) -> list[Optimizer]:
    return [torch.optim.AdamW(model[0].parameters(), lr=1e-3), sgd(model[2].parameters())]


def head(model: Any) -> list[Optimizer]:
    return [sgd(model[2].parameters())]


@pytest.mark.parametrize("after", [whole, halves, head])
@pytest.mark.parametrize("before", [whole, halves])
def test_optimizers_made_anew_over_the_same_parameters_are_followed_from_their_second_step(
    daemon: LedgerDaemon, before: Callable[[nn.Module], list[Optimizer]], after: Callable[[nn.Module], list[Optimizer]]
) -> None:
    model = small()
    first, second = before(model), after(model)
    peer = attach(daemon, model, first, every=1)  # type: ignore[arg-type]
    descend(model, *(each.step for each in first), daemon.pump)
    assert peer.steps == 6
    descend(model, *(each.step for each in second), daemon.pump)
    assert peer.steps == 11 and submits(daemon) == [(1, 1)] * 11
    assert peer._optimizers.all[-1] is second[-1]
    state = peer.state_dict()
    assert any(torch.equal(value.cpu(), state[f"2.bias::{kind}"]) for kind, value in kept(second[-1], model[2].bias))  # type: ignore[index]
    descend(model, *(each.step for each in first))
    assert peer.steps == 16, "and back"
    peer.detach()


def kept(optimizer: Optimizer, parameter: Any) -> Sequence[tuple[str, Tensor]]:
    return [(kind, value) for kind, value in optimizer.state[parameter].items() if isinstance(value, Tensor)]


def test_an_optimizer_made_anew_at_every_step_is_followed(daemon: LedgerDaemon) -> None:
    model = small()
    peer = attach(daemon, model, sgd(model.parameters()))
    descend(model, lambda: sgd(model.parameters()).step())
    assert peer.steps == 3, "every other one"
    peer.detach()


def test_an_adam_made_anew_is_the_one_of_which_moments_are_told(daemon: LedgerDaemon) -> None:
    model = small()
    (first,), (second,) = whole(model), whole(model)
    peer = attach(daemon, model, first)
    descend(model, first.step, times=3)
    assert peer._optimizers.moments is not None and peer._optimizers.moments.steps == 3
    descend(model, second.step, times=4)
    assert peer._optimizers.moments.steps == 4
    (chunk,) = handed(peer._optimizers.moments, 4).chunks
    expected = torch.cat([second.state[each]["exp_avg_sq"].reshape(-1) for each in model.parameters()])
    told = decoded(np.frombuffer(chunk.payload, np.uint8), daemon.schema.trainable)[1]  # type: ignore[union-attr]
    assert np.allclose(told[: len(expected)], expected, rtol=0.07)
    peer.detach()


# -- inside the backward pass -------------------------------------------------------------------------------------


def in_backward(model: nn.Module) -> list[Optimizer]:
    """One optimizer per parameter, which steps as soon as its gradient is ready."""
    of = {parameter: sgd([parameter]) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        of[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in of:
        parameter.register_post_accumulate_grad_hook(step)
    return list(of.values())


def test_optimizers_that_step_inside_backward__corrections_are_added_after_it(daemon: LedgerDaemon) -> None:
    models = [small(), small()]
    optimizers = [in_backward(model) for model in models]
    peer = attach(daemon, models[0], optimizers[0], every=1)  # type: ignore[arg-type]
    for model in models:
        descend(model, daemon.pump)
    assert equal(*models), "bit for bit the bare optimizers"
    assert peer.steps == 6 and submits(daemon) == [(1, 1)] * 6
    assert daemon.last is not None and np.array_equal(daemon.last, vector(models[0]).astype(np.float32))

    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    for model in models:
        descend(model, times=1)
    assert np.allclose(vector(models[0]), vector(models[1]) + 1.0), "gradients are those of the weights before it"
    peer.detach()


def test_a_backward_pass_that_raised_after_a_step_does_not_hide_the_next(daemon: LedgerDaemon) -> None:
    model = small()
    peer = attach(daemon, model, in_backward(model))  # type: ignore[arg-type]
    broken = model[0].weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)  # type: ignore[index]
    with pytest.raises(ZeroDivisionError):
        descend(model, times=1)
    broken.remove()
    descend(model, times=2)
    assert peer.steps == 2
    peer.detach()


def test_a_step_inside_the_backward_of_a_reentrant_checkpoint_is_gd_317(daemon: LedgerDaemon) -> None:
    model = small()
    optimizers = in_backward(model)
    attach(daemon, model, optimizers)  # type: ignore[arg-type]
    inputs = torch.ones(8, 20, requires_grad=True)
    with pytest.raises(ConfigError, match="GD-317") as caught:
        checkpoint(model, inputs, use_reentrant=True).square().mean().backward()  # type: ignore[no-untyped-call]
    assert "use_reentrant=False" in caught.value.do
    checkpoint(model, inputs, use_reentrant=False).square().mean().backward()  # type: ignore[no-untyped-call]


# -- by hand ------------------------------------------------------------------------------------------------------


def by_hand(model: nn.Module, peer: Attachment, after: Callable[[], object]) -> None:
    for _ in range(6):
        model.zero_grad()
        model(torch.ones(8, 20)).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.01 * parameter.grad
        peer.step()
        after()


def test_a_loop_without_an_optimizer_says_itself_when_a_step_is_over(daemon: LedgerDaemon) -> None:
    model = small()
    with daemon.running():
        peer = attach_alone(daemon, model)
    by_hand(model, peer, daemon.pump)
    assert peer.steps == 6 and submits(daemon) == [(1, 1)] * 6 and peer.state_dict() == {}
    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    before = vector(model)
    peer.step()
    assert np.allclose(vector(model), before + 1.0)
    peer.detach()
    peer.step()
    assert peer.steps == 7, "and no more"


def test_ranks_that_say_themselves_when_a_step_is_over_exchange(pumped: PumpedDaemon, group_of_one: None) -> None:
    model = small()
    peer = attach_alone(pumped, model)
    by_hand(model, peer, pumped.pump)
    assert peer.steps == 6 and not peer.alone
    peer.detach()
    pumped.pump()
    assert sum(steps for steps, _ in submits(pumped)) == 6


def attach_alone(daemon: LedgerDaemon, model: nn.Module) -> Attachment:
    return gossipdp.attach(model, home=daemon.server.path.parent)


def test_steps_said_by_hand_count_alone_even_if_an_optimizer_is_followed(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = sgd(model.parameters())
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 2)
    assert peer.steps == 2
    peer.step()
    train(model, optimizer, 3, peer.step)
    assert peer.steps == 6
    peer.detach()
