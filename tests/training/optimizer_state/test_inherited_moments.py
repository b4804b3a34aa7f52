"""A new optimizer begins with the moments that the daemon keeps for it: its own from before, or another host's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gossipdp.codecs import moments as codec
from gossipdp.runtime import link as links
from gossipdp.training.tensors.layout import Layout
from tests.training.moments_daemon import MomentsDaemon
from tests.training.optimizer_state.inheritance import (
    Optimizer,
    adam,
    attach,
    die,
    flat,
    handed,
    model_of,
    train,
    trained_and_gone,
)

KEYS = ("exp_avg", "exp_avg_sq")


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
    model, optimizer = trained_and_gone(daemon, kind, **options)
    assert daemon.told[:2] == [1, 2] and daemon.held is not None
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
    daemon.held = handed(moments, 12)
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
    daemon = daemons(every=4)
    trained_and_gone(daemon)
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
    assert second.told and second.held is not held and second.held is not None
    assert not any(isinstance(event, links.MomentsWanted) for event in second.events)


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
    assert daemon.told[:2] == [1, 2] and daemon.held is not None
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
