"""When training hands the moments of its optimizers to the daemon, and when it does not."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gossipdp.runtime import link as links
from gossipdp.training import waiting
from gossipdp.training.optimizer_state.schedule import MomentsSchedule
from tests.training.moments_daemon import MomentsDaemon
from tests.training.optimizer_state.inheritance import adam, attach, given, model_of, schema_of, train


def test_daemon_that_keeps_moments_waiting_is_left_before_it_writes_over_a_snapshot(
    daemons: Callable[..., MomentsDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still writes would become the anchor. A new connection brings new memory."""
    model = model_of()
    daemon = daemons(every=4, held=given(schema_of(model), 4.0, 3.0, 1000))
    late: list[np.ndarray] = []
    feed = daemon.feed
    monkeypatch.setattr(waiting, "MOMENTS_WITHIN", 0.2)
    monkeypatch.setattr(
        daemon,
        "feed",
        lambda event: late.append(daemon.region.raw[0]) if isinstance(event, links.MomentsWanted) else feed(event),
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
    snapshot = daemon.region.buffers[0].copy()
    daemon.copier.write(late[0], daemon.held, daemon.schema, lambda: None)
    assert np.array_equal(daemon.region.buffers[0], snapshot) and late[0].any()


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
                if daemon.snapshot >= 4 and len(daemon.told) >= 2:
                    break
    else:
        train(model, optimizer, 30, daemon)
    assert daemon.held is not None and daemon.told[:2] == [1, 2] and daemon.snapshot >= 4


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
        "this optimizer's moments are not shared with the network: only those of Adam's family are"
    ) == 1


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


def test_handover_is_due_after_the_first_round_and_then_every_so_many() -> None:
    schedule, told = MomentsSchedule(), []
    schedule.begin(3)
    for number in range(1, 9):
        schedule.round_done()
        while told_now := schedule.next():
            assert schedule.open and not schedule.next()
            schedule.taken(told_now + 1)
            assert schedule.open
            schedule.taken(told_now)
            assert not schedule.open
            told.append((number, told_now))
    assert told == [(1, 1), (4, 2), (7, 3)]


def test_handover_of_what_was_not_told_is_due_again() -> None:
    schedule = MomentsSchedule()
    schedule.begin(1)
    schedule.round_done()
    number = schedule.next()
    schedule.undo()
    assert number and not schedule.open and schedule.due and schedule.next()


def test_handover_that_was_interrupted_is_due_after_the_next_round() -> None:
    """What a daemon of before says of it counts no more."""
    schedule = MomentsSchedule()
    schedule.begin(1)
    schedule.round_done()
    before = schedule.next()
    schedule.begin(1)
    assert not schedule.open and not schedule.next()
    schedule.round_done()
    assert schedule.next() > before
    schedule.taken(before)
    assert schedule.open
