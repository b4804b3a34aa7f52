"""Parameters that change while no step is counted: one warning, for the script and its daemon."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from gossipdp.training import uncounted
from gossipdp.training.boundaries import Boundaries
from gossipdp.training.uncounted import Uncounted
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, train


def no_change() -> None:
    pass


def ignore(*given: object) -> None:
    pass


def bounded(
    model: nn.Module,
    stepping: threading.Event,
    *optimizers: torch.optim.Optimizer,
    over: Callable[[torch.optim.Optimizer | None], None] = ignore,
) -> Boundaries:
    return Boundaries(
        model,
        optimizers,
        before=ignore,
        begins=ignore,
        ends=ignore,
        over=over,
        partly=ignore,
        changed=ignore,
        stepping=stepping,
    )


class Watch:
    """Looks every 2 s of its own clock."""

    def __init__(self, model: nn.Module) -> None:
        self.now, self.told = 0.0, list[float]()
        self.stepping = threading.Event()
        self.of = Uncounted(model, lambda: self.told.append(self.now), self.stepping)

    def pass_by(self, seconds: float, change: Callable[[], object] = no_change, every: float = 0.5) -> None:
        until = self.now + seconds
        while self.now < until:
            change()
            self.now += every
            if self.now % uncounted.LOOK < every:
                self.of.look(self.now)


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0.01)


def by_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data -= 0.01


def new_memory(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.01


def replaced(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(torch.randn(30, 20))  # type: ignore[index, union-attr]


@pytest.mark.parametrize("change", [in_place, by_data, new_memory, replaced])
def test_parameters_change_and_no_step_is_counted__said_within_30_s_and_once_in_ten_minutes(
    change: Callable[[nn.Module], None], caplog: pytest.LogCaptureFixture
) -> None:
    model = small()
    watch = Watch(model)
    watch.pass_by(60, lambda: change(model))
    assert len(watch.told) == 1 and watch.told[0] <= 30
    assert caplog.text.count("GD-321") == 1 and "peer.step()" in caplog.text
    watch.pass_by(700, lambda: change(model))
    assert len(watch.told) == 2
    watch.of.step_counted()


def test_changes_with_counted_steps_or_few_without__nothing_is_said() -> None:
    model = small()
    watch = Watch(model)

    def step() -> None:
        in_place(model)
        watch.of.step_counted()

    watch.pass_by(60, step)
    watch.pass_by(60, step, every=8.0)
    watch.pass_by(120)
    for _ in range(2):  # an evaluation with averaged weights puts them in and back
        in_place(model)
        watch.pass_by(60)
    watch.pass_by(60, lambda: model(torch.ones(8, 20)).mean().backward())
    assert not watch.told


def test_a_look_while_a_step_runs_sees_nothing() -> None:
    model = small()
    watch = Watch(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=200, tolerance_grad=0.0, tolerance_change=0.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(8, 20)).square().mean()
        loss.backward()
        watch.pass_by(2.0, every=2.0)
        return loss

    boundaries = bounded(model, watch.stepping, optimizer)
    optimizer.step(closure)  # type: ignore[arg-type]
    assert watch.now > 100 and not watch.told
    assert not watch.stepping.is_set()
    boundaries.close()


def test_second_optimizer_that_never_steps__steps_of_the_first_are_seen_as_changes() -> None:
    model = small()
    watch = Watch(model)
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))

    boundaries = bounded(model, watch.stepping, first, second)

    def step() -> None:
        model(torch.ones(8, 20)).square().mean().backward()
        first.step()

    watch.pass_by(60, step)
    assert len(watch.told) == 1
    boundaries.close()


def test_no_step_is_under_way_after_a_step_made_inside_a_backward_pass_or_said_by_hand() -> None:
    model, seen = small(), list[bool]()
    stepping = threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def over(optimizer: torch.optim.Optimizer | None) -> None:
        seen.append(stepping.is_set())

    boundaries = bounded(model, stepping, optimizer, over=over)
    hook = next(model.parameters()).register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    model(torch.ones(8, 20)).mean().backward()
    assert seen == [True] and not stepping.is_set()
    hook.remove()
    boundaries.by_hand()
    assert seen == [True, True] and not stepping.is_set()
    boundaries.close()


def test_a_loop_that_calls_no_step__the_script_and_the_daemon_hear_of_it(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uncounted, "LOOK", 0.001)
    monkeypatch.setattr(uncounted, "WITHIN", 0.0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 3, daemon.pump)

    def heard() -> bool:
        daemon.pump(0.01)
        return any(isinstance(event, links.Reported) and event.uncounted for event in daemon.events)

    with caplog.at_level(logging.WARNING, "gossipdp"):
        for _ in range(1000):
            by_data(model)
            if heard():
                break
    assert heard() and "GD-321" in caplog.text
    peer.detach()


EXITS_WHILE_IT_LOOKS = """
import threading
import torch
from gossipdp.training import uncounted
uncounted.LOOK = 0.0
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
watch = uncounted.Uncounted(model, lambda: None, threading.Event())
watch.start()
for _ in range(200):
    model(torch.randn(4, 8))
watch.close()
"""


def test_process_that_exits_while_its_parameters_are_looked_at__ends_with_0() -> None:
    assert subprocess.run([sys.executable, "-c", EXITS_WHILE_IT_LOOKS], check=False).returncode == 0


def test_script_that_an_exception_ends__nothing_is_looked_at_any_more(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    peer = attach(daemon, model, torch.optim.SGD(model.parameters(), lr=0.1))
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    peer._at_exit()
    assert peer._counter is not None and not peer._counter._uncounted._thread.is_alive()
    peer.detach()
