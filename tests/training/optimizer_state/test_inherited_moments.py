"""A new optimizer begins with the moments that the daemon keeps for it: its own from before, or another host's."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.codecs import moments as codec
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.runtime import link as links
from gossipdp.runtime.moments import MomentsCopier
from gossipdp.training import waiting
from gossipdp.training.attachment import Attachment
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.schedule import MomentsSchedule
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.master_weights import MasterWeights
from tests.training.moments_daemon import MomentsDaemon

Optimizer = torch.optim.Optimizer
KEYS = ("exp_avg", "exp_avg_sq")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., MomentsDaemon]]:
    with contextlib.ExitStack() as stack:

        def start(name: str = "a", **options: Any) -> MomentsDaemon:
            daemon = MomentsDaemon(tmp_path / name, **options)
            stack.callback(daemon.server.close)
            return daemon

        yield start


def attach(daemon: MomentsDaemon, model: nn.Module, optimizer: Optimizer) -> Attachment:
    with daemon.running():
        return gossipdp.attach(model, optimizer, home=daemon.server.path.parent, timeout=20)


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 300, bias=False), nn.BatchNorm1d(300), nn.Tanh(), nn.Linear(300, 10))


def loss_of(model: nn.Module, random: torch.Generator) -> torch.Tensor:
    data = torch.randn(32, 20, generator=random)
    target = torch.tanh(3 * data[:, :10]) + 0.1 * torch.randn(32, 10, generator=random)
    return nn.functional.mse_loss(model(data), target)


def train(
    model: nn.Module, optimizer: Optimizer, steps: int, daemon: MomentsDaemon | None = None, seed: int = 1
) -> list[float]:
    random, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, random)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if daemon is not None:
            daemon.pump()
    return losses


def die(peer: Attachment) -> None:
    """The process is gone without a message."""
    assert peer._session is not None and peer._session._connection.link is not None
    peer._stop()
    peer._session._connection.link.close()
    peer._session._connection._retry_at = math.inf


def adam(model: nn.Module, kind: type[Optimizer] = torch.optim.AdamW, **options: Any) -> Optimizer:
    return kind(model.parameters(), lr=3e-3, **options)  # type: ignore[call-arg]


def update(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return state["exp_avg"] / state["exp_avg_sq"].sqrt()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.RAdam, {"foreach": True}),
    ],
)
def test_process_that_was_killed_comes_back_with_its_moments(
    daemons: Callable[..., MomentsDaemon], kind: type[Optimizer], options: dict[str, Any]
) -> None:
    daemon = daemons(every=4)
    model = model_of()
    optimizer = adam(model, kind, **options)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 41, daemon)
    assert daemon.told[:4] == ["second", "first"] * 2 and daemon.held is not None
    die(peer)
    daemon.pump()
    again = model_of(5)
    fresh = adam(again, kind, **options)
    attach(daemon, again, fresh)
    for mine, before in zip(again.parameters(), model.parameters(), strict=True):
        new, old = fresh.state[mine], optimizer.state[before]
        assert 35 <= int(new["step"]) <= 41 and new["step"].dtype == old["step"].dtype
        assert set(new) == set(old)
        assert all(new[key].shape == mine.shape and new[key].dtype == mine.dtype for key in KEYS)
        # The second moments of some steps ago, to 6 %, and the first to what it has become since.
        assert torch.allclose(new["exp_avg_sq"], old["exp_avg_sq"], rtol=0.5, atol=0.05 * old["exp_avg_sq"].max())
        assert torch.corrcoef(torch.stack([update(new).flatten(), update(old).flatten()]))[0, 1] > 0.6
    train(again, fresh, 5, daemon)
    assert int(fresh.state[next(again.parameters())]["step"]) >= 40


def test_moments_come_back_as_the_codec_has_them_and_the_model_is_untouched(
    daemons: Callable[..., MomentsDaemon],
) -> None:
    """The moments are sent after the last step, so nothing has moved since."""
    daemon = daemons(every=4)
    model = model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 12, daemon)
    moments = peer._optimizers.moments
    assert moments is not None and daemon.schema is not None
    whole = {key: np.zeros(daemon.region.size, np.float32) for key in KEYS}
    moments.read("second", whole["exp_avg_sq"])
    moments.read("first", whole["exp_avg"])
    daemon.copier.read("second", 12, whole["exp_avg_sq"], daemon.schema, lambda _: None)
    daemon.copier.read("first", 12, whole["exp_avg"], daemon.schema, lambda held: setattr(daemon, "held", held))
    die(peer)
    daemon.pump()
    again = model_of(5)
    fresh = adam(again)
    attach(daemon, again, fresh)
    anchor = daemon.a
    assert anchor is not None
    for entry, parameter in zip(daemon.schema.entries, again.parameters(), strict=False):
        assert np.array_equal(parameter.detach().numpy().ravel(), anchor[entry.offset : entry.stop])
    for mine, before in zip(again.parameters(), model.parameters(), strict=True):
        new, old = fresh.state[mine], optimizer.state[before]
        used = old["exp_avg_sq"] > 0
        error = (update(new) - update(old))[used].abs()
        assert float(error.max()) <= codec.MOST_RATIO / 254 + 0.0293 * float(update(old)[used].abs().max())
        assert float((error**2).mean().sqrt()) < 0.03 * float((update(old)[used] ** 2).mean().sqrt())
        assert torch.allclose(new["exp_avg_sq"], old["exp_avg_sq"], rtol=0.06)


def test_moments_come_when_the_model_is_loaded_and_not_before(
    daemons: Callable[..., MomentsDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments arrive where the model was, and a device copies the model with a delay."""
    daemon, model = daemons(every=4), model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 41, daemon)
    die(peer)
    daemon.pump()
    assert daemon.held is not None and daemon.a is not None
    enqueued: list[Callable[[], None]] = []
    load, finish = Layout.load, Layout.finish

    def enqueue(layout: Layout, *arguments: Any, **options: Any) -> None:
        enqueued.append(lambda: load(layout, *arguments, **options))

    def carry_out(layout: Layout) -> None:
        while enqueued:
            enqueued.pop(0)()
        finish(layout)

    monkeypatch.setattr(Layout, "load", enqueue)
    monkeypatch.setattr(Layout, "finish", carry_out)
    again = model_of(5)
    attach(daemon, again, fresh := adam(again))
    assert fresh.state and not enqueued
    assert np.array_equal(flat(again), daemon.a[: flat(again).size])


def flat(model: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


def given(schema: Schema, v: float, m: float, steps: int) -> Moments:
    """What a source may send: one v and m for all parameters."""
    bench: list[Moments | None] = []
    copier = MomentsCopier(lambda piece, done: done(piece()))
    copier.read("second", steps, np.full(schema.size, v, np.float32), schema, bench.append)
    copier.read("first", steps, np.full(schema.size, m, np.float32), schema, bench.append)
    assert bench[1] is not None
    return bench[1]


def schema_of(model: nn.Module) -> Schema:
    return MasterWeights(model, ()).schema


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
    daemon, model = daemons(every=4), model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 41, daemon)
    die(peer)
    daemon.pump()
    again = model_of(5)
    fresh = adam(again)
    peer = attach(daemon, again, fresh)
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
    size = model.weight.numel()
    for which, value in (("second", 1e-4), ("first", 1e-2)):
        moments.load(which, 0, torch.full((size,), value))  # type: ignore[arg-type]
    moments.finish(1000)
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
    for which, value in (("second", 1e-10), ("first", 1e-6)):
        moments.load(which, 0, torch.full((32,), value))  # type: ignore[arg-type]
    moments.finish(1000)
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
    for which, value in (("second", 1e-4), ("first", 1e-2)):
        moments.load(which, 0, torch.full((16,), value))  # type: ignore[arg-type]
    moments.finish(1000)
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
    assert not daemon.region.x[schema.padding].any()


def test_daemon_that_keeps_moments_waiting_is_left_before_it_writes_over_a_snapshot(
    daemons: Callable[..., MomentsDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still writes would become the anchor. A new connection brings new memory."""
    model = model_of()
    daemon = daemons(every=4, held=given(schema_of(model), 4.0, 3.0, 1000))
    late: list[np.ndarray] = []
    feed = daemon.feed
    monkeypatch.setattr(waiting, "MOMENT_WITHIN", 0.2)
    monkeypatch.setattr(
        daemon,
        "feed",
        lambda event: late.append(daemon.region.x) if isinstance(event, links.MomentsWanted) else feed(event),
    )
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    assert len(late) == 1 and peer.alone and not optimizer.state
    assert peer._session is not None
    peer._session._connection._retry_at = 0.0
    for step in range(200):
        train(model, optimizer, 1, daemon, seed=step)
        if len([event for event in daemon.events if isinstance(event, links.Submitted)]) > 1:
            break
    assert not peer.alone and daemon.held is not None and daemon.schema is not None
    snapshot = daemon.region.x.copy()
    daemon.copier.write("second", late[0], daemon.held, daemon.schema, lambda: None)
    assert np.array_equal(daemon.region.x, snapshot) and late[0].any()


def test_state_that_is_loaded_into_the_optimizer_after_attach_is_counted(
    daemons: Callable[..., MomentsDaemon],
) -> None:
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


def test_optimizer_that_has_a_state_keeps_it(daemons: Callable[..., MomentsDaemon]) -> None:
    daemon = daemons(every=4)
    model = model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 20, daemon)
    die(peer)
    daemon.pump()
    again = model_of(1)
    own = adam(again)
    train(again, own, 3)
    kept = {key: own.state[next(again.parameters())][key].clone() for key in KEYS}
    attach(daemon, again, own)
    assert all(torch.equal(own.state[next(again.parameters())][key], kept[key]) for key in KEYS)
    assert not any(isinstance(event, links.MomentsWanted) for event in daemon.events)


def test_daemon_that_dies_changes_no_moments_and_hears_them_anew(daemons: Callable[..., MomentsDaemon]) -> None:
    daemon = daemons(every=4)
    model = model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    train(model, optimizer, 20, daemon)
    held, anchor = daemon.held, daemon.a
    daemon.server.close()
    second = daemons(every=4, held=held, anchor=anchor)
    train(model, optimizer, 40, second, seed=2)
    assert int(optimizer.state[next(model.parameters())]["step"]) == 60
    assert second.told[:2] == ["second", "first"] and second.held is not held and second.held is not None
    assert not any(isinstance(event, links.MomentsWanted) for event in second.events)


def test_what_stands_in_the_padding_of_a_model_does_no_harm(daemons: Callable[..., MomentsDaemon]) -> None:
    """An exchange may have moved it: it belongs to no tensor, but a negative second moment would be refused."""
    daemon = daemons(every=2)
    model = model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    random = np.random.default_rng(0)
    for step in range(12):
        daemon.region.x[:] = -1.0
        daemon.mix(1e-3 * random.standard_normal(daemon.region.size).astype(np.float32))
        daemon.seal()
        train(model, optimizer, 1, daemon, seed=step)
    assert daemon.held is not None and daemon.told[:2] == ["second", "first"]


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_moments_are_told_whenever_corrections_land(daemons: Callable[..., MomentsDaemon], mode: str) -> None:
    daemon = daemons(every=4, mode=mode, settles=lambda daemon: None)
    model = model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    if mode == "sync":
        with daemon.running():
            # A thread that is late misses a boundary, and the next is four steps further.
            for _ in range(100):
                train(model, optimizer, 4)
                if daemon.snapshot >= 4 and len(daemon.told) >= 4:
                    break
    else:
        train(model, optimizer, 30, daemon)
    assert daemon.held is not None and daemon.told[:4] == ["second", "first"] * 2 and daemon.snapshot >= 4


def test_switched_off_nothing_is_told(daemons: Callable[..., MomentsDaemon]) -> None:
    daemon = daemons(every=2, moments_every=0)
    model = model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    train(model, optimizer, 20, daemon)
    assert not daemon.told and daemon.snapshot > 5


def test_of_another_optimizer_nothing_is_told_and_that_is_said_once(
    daemons: Callable[..., MomentsDaemon], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = daemons(every=2)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with caplog.at_level(logging.INFO, "gossipdp.training"):
        attach(daemon, model, optimizer)
        train(model, optimizer, 20, daemon)
    assert not daemon.told and daemon.snapshot > 5
    assert [record.message for record in caplog.records].count(
        "this optimizer's moments are not shared with the network: only those of Adam and its kin are"
    ) == 1


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


def test_snapshots_and_moments_never_use_the_memory_at_once(daemons: Callable[..., MomentsDaemon]) -> None:
    """The daemon sees whole snapshots and whole moments, in any order of events."""
    daemon = daemons(every=1)
    model = model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    random = np.random.default_rng(0)
    for step in range(200):
        train(model, optimizer, 1, seed=step)
        if random.random() < 0.4:
            daemon.pump()
        if daemon.last is not None:
            # Parameters of this model are of both signs and small; second moments are of one.
            assert (daemon.last[: 20 * 300] < 0.0).mean() > 0.3
    assert len(daemon.told) > 30 and daemon.snapshot > 20 and daemon.held is not None
    assert peer._session is not None and daemon.held.steps > 150


def test_joiner_with_moments_loses_less_in_its_first_steps(daemons: Callable[..., MomentsDaemon]) -> None:
    """The jump of the loss after joining, with the moments of the source and without."""
    source = daemons("source", every=20)
    model = model_of()
    optimizer = adam(model)
    attach(source, model, optimizer)
    before = float(np.mean(train(model, optimizer, 400, source)[-50:]))
    assert source.held is not None and source.a is not None
    jumps = {}
    for name, held in (("with", source.held), ("without", None)):
        joiner = daemons(name, every=20, held=held, anchor=source.a.copy())
        joined = model_of(9)
        joined_optimizer = adam(joined)
        attach(joiner, joined, joined_optimizer)
        jumps[name] = float(np.mean(train(joined, joined_optimizer, 20, joiner, seed=3))) - before
    print(f"loss before {before:.4f}, jump in 20 steps: {jumps}")
    assert jumps["with"] <= jumps["without"]


def test_handover_tells_both_after_the_first_round_and_then_every_so_many() -> None:
    schedule, told = MomentsSchedule(), []
    schedule.begin(3)
    for number in range(1, 9):
        schedule.round_done()
        while told_now := schedule.next():
            assert schedule.open and not schedule.next()
            schedule.taken(told_now + 1)
            assert schedule.open
            schedule.taken(told_now)
            told.append((number, told_now))
    assert told == [(1, 1), (1, 2), (4, 3), (4, 4), (7, 5), (7, 6)]


def test_handover_of_what_was_not_told_is_open_again() -> None:
    schedule = MomentsSchedule()
    schedule.begin(1)
    schedule.round_done()
    assert schedule.next() == 1
    schedule.undo()
    assert not schedule.open and schedule.next() == 1


def test_handover_that_was_interrupted_begins_again_with_the_second_moment() -> None:
    schedule = MomentsSchedule()
    schedule.begin(1)
    schedule.round_done()
    assert schedule.next() == 1
    schedule.begin(1)
    assert not schedule.open and not schedule.next()
    schedule.round_done()
    assert schedule.next() == 3


def test_of_several_optimizers_those_of_adams_family_are_handed_over(daemons: Callable[..., MomentsDaemon]) -> None:
    class Pair:
        def __init__(self, model: Any) -> None:
            self.sgd = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
            self.adams = [torch.optim.AdamW(model[1].parameters()), torch.optim.Adam(model[3].parameters())]
            self.all = [self.sgd, *self.adams]

        def zero_grad(self) -> None:
            for each in self.all:
                each.zero_grad()

        def step(self) -> None:
            for each in self.all:
                each.step()

    daemon, model, again = daemons(every=4), model_of(), model_of(5)
    pair = Pair(model)
    peer = attach(daemon, model, pair.all)  # type: ignore[arg-type]
    train(model, pair, 41, daemon)  # type: ignore[arg-type]
    assert daemon.told[:4] == ["second", "first"] * 2 and daemon.held is not None
    die(peer)
    daemon.pump()
    fresh = Pair(again)
    attach(daemon, again, fresh.all).detach()  # type: ignore[arg-type]
    assert not fresh.sgd.state, "it begins as new"
    for new, old in zip(fresh.adams, pair.adams, strict=True):
        for mine, before in zip(new.param_groups[0]["params"], old.param_groups[0]["params"], strict=True):
            assert 35 <= int(new.state[mine]["step"]) <= 41
            assert (
                torch.corrcoef(torch.stack([update(new.state[mine]).flatten(), update(old.state[before]).flatten()]))[
                    0, 1
                ]
                > 0.6
            )
