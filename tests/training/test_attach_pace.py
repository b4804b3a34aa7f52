"""attach(): the pace of snapshots, and what reaches the daemon."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import gossipdp
from gossipdp.runtime import link as links
from gossipdp.training import dialogue
from gossipdp.training import session as sessions
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon
from tests.training.models import attach, small, submits, train, vector


def test_submits_follow_the_daemons_pace_and_count_samples(daemon: LedgerDaemon) -> None:
    daemon.every, daemon.clock = 3, 1000
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, samples_per_step=8)
    assert (peer.clock, peer.network_samples) == (1000, 0)
    train(model, optimizer, 7, daemon.pump)
    assert submits(daemon) == [(3, 24), (3, 24)]
    assert (peer.steps, peer.clock, peer.network_samples) == (7, 1007, 56)
    daemon.server.send(links.Pace(1, 2000, 5000))
    train(model, optimizer, 2, daemon.pump)
    assert submits(daemon)[2:] == [(2, 16), (1, 8)]
    assert peer.clock >= 2002 and peer.network_samples >= 5016


@pytest.mark.parametrize("ranks", [False, True], ids=["one process", "ranks"])
def test_a_schedule_follows_the_networks_clock_from_the_first_step_on(
    pumped: PumpedDaemon, request: pytest.FixtureRequest, ranks: bool
) -> None:
    if ranks:
        request.getfixturevalue("group_of_one")
    pumped.clock = 1000
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    peer = gossipdp.attach(model, optimizer)
    schedule = LambdaLR(optimizer, peer.schedule(lambda step: 1.0 / step))
    rates = schedule.get_last_lr()
    assert rates == [8.0 / 1000] and not peer.alone

    def follow() -> None:
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])

    train(model, optimizer, 6, follow)
    first = 1000 if ranks else 1001
    assert rates[1:] == [8.0 / clock for clock in range(first, first + 6)], "what ranks know is a step old"
    with pumped.lock:
        pumped.server.send(links.Pace(2, 5000, 0))
    train(model, optimizer, 3, follow)
    assert 8.0 / 5010 < rates[-1] <= 8.0 / 5000, "others are ahead"
    peer.detach()


def test_a_joiner_and_a_script_started_again_have_the_clocks_rate_from_the_first_step(
    pumped: PumpedDaemon, tmp_path: Path
) -> None:
    """The plain script that is started again would begin at f(0)."""

    def warm_up(step: int) -> float:
        return min(1.0, (step + 1) / 20_000)

    def life(steps: int) -> tuple[int, list[float]]:
        """A process of this script. Returns the clock at its start, and the learning rate of each step."""
        model = small()
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1.0}], 2.0
        )
        with gossipdp.attach(model, optimizer) as peer:
            began, rates = peer.clock, []
            scheduler = LambdaLR(optimizer, [peer.schedule(warm_up), peer.schedule(lambda _: 0.5)])
            optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
            train(model, optimizer, steps, scheduler.step)
            torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
            assert optimizer.param_groups[1]["lr"] == 0.5
        return began, rates

    pumped.clock = 10_000
    assert life(4) == (10_000, [2.0 * warm_up(step) for step in range(10_000, 10_004)])
    pumped.clock = 12_000  # others trained on
    assert life(3) == (12_000, [2.0 * warm_up(step) for step in range(12_000, 12_003)])


def test_a_saved_scheduler_is_loaded_and_follows_the_clock(daemon: LedgerDaemon) -> None:
    daemon.clock = 300
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    peer = attach(daemon, model, optimizer)
    scheduler = LambdaLR(optimizer, peer.schedule(lambda step: 1.0 / step))
    state = scheduler.state_dict()
    assert state["lr_lambdas"] == [None]
    scheduler.load_state_dict(state | {"last_epoch": 9})
    train(model, optimizer, 1, scheduler.step)
    assert scheduler.get_last_lr() == [1.0 / 301]


def test_no_snapshot_is_written_before_the_last_was_taken(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=1)
    train(model, optimizer, 5)  # the daemon is busy
    held = daemon.region.buffers[0].copy()
    train(model, optimizer, 5)
    assert np.array_equal(daemon.region.buffers[0], held)
    daemon.pump()
    train(model, optimizer, 1)
    daemon.pump()
    assert submits(daemon) == [(1, 1), (10, 10)]
    assert daemon.a is not None and np.array_equal(daemon.a, vector(model).astype(np.float32))


def test_a_refused_snapshot_gives_its_steps_to_the_next(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=2)
    session = daemon.session
    daemon.session = -1
    train(model, optimizer, 2)
    daemon.pump()
    daemon.session = session
    train(model, optimizer, 1, daemon.pump)
    assert submits(daemon) == [(2, 2), (3, 3)]


def test_slow_steps_are_submitted_after_a_while(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 2, daemon.pump)
    assert submits(daemon) == []
    monkeypatch.setattr(dialogue, "SUBMIT_WITHIN", 0.0)
    train(model, optimizer, 1, daemon.pump)
    assert submits(daemon) == [(3, 3)]


def test_messages_wait_for_copies_under_way(daemon: LedgerDaemon) -> None:
    """On CUDA a copy ends later: no message about it may leave before."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=2)
    assert peer._layout is not None
    copied = False
    read = peer._layout.read
    peer._layout.fence = lambda: lambda: copied  # type: ignore[method-assign]
    peer._layout.read = lambda into: (read(into), lambda: copied)[1]  # type: ignore[method-assign]
    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    train(model, optimizer, 3, daemon.pump)
    assert submits(daemon) == [] and daemon.drained == 0
    copied = True
    train(model, optimizer, 1, daemon.pump)
    kinds = [type(event) for event in daemon.events[3:5]]
    assert kinds == [links.SlotApplied, links.Submitted], "in the order begun"
    assert submits(daemon)[0] == (2, 2)


def test_nan_never_raises_and_is_refused(daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
    attach(daemon, model, optimizer)
    anchor = daemon.a
    assert anchor is not None
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train(model, optimizer, 3, daemon.pump)
    assert not np.isfinite(vector(model)).all()
    assert np.array_equal(daemon.a, anchor)  # type: ignore[arg-type]
    assert "GD-402 a snapshot was not used: nan" in caplog.text


def test_reports_reach_the_daemon(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REPORT_EVERY", 0.0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 2)
    peer.report(loss=torch.tensor(1.5, requires_grad=True))
    daemon.pump()
    (reported,) = [event for event in daemon.events if isinstance(event, links.Reported)]
    assert reported.loss == 1.5 and math.isnan(reported.eval_loss)
    assert 0.0 < reported.stall_seconds <= peer.stall_seconds


def test_losses_go_with_the_next_snapshot(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=2)
    peer.report(loss=1.5, eval_loss=torch.tensor(2.0))
    peer.report(loss=1.25)
    train(model, optimizer, 2)
    daemon.pump()
    (submitted,) = [event for event in daemon.events if isinstance(event, links.Submitted)]
    assert (submitted.loss, submitted.eval_loss) == (1.25, 2.0), "one that is not given keeps its value"
