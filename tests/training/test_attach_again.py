"""attach(): daemons and training processes that come, go, die and come back."""

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import gossipdp
from gossipdp.errors import HardwareError, MismatchError, UnreachableError
from gossipdp.protocol.schema import Mismatch, Schema
from gossipdp.runtime import link as links
from gossipdp.runtime.network.identity import IDENTITY_FILE
from gossipdp.training import connection, waiting
from gossipdp.training.orders import Write
from gossipdp.training.session import Session
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import FROZEN_DIFFER, FROZEN_DIFFER_PARTLY
from gossipdp.training.tensors.streams import passed
from gossipdp.training.waiting import ModelWait
from simulations.processes.progress import until
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, submits, train, vector


def test_a_joiner_starts_from_the_networks_model(tmp_path: Path) -> None:
    size = Schema.of((n, tuple(p.shape), "float32", "parameter") for n, p in small().named_parameters()).size
    anchor = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    daemon = LedgerDaemon(tmp_path, anchor=anchor)
    model = small()
    attach(daemon, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert np.array_equal(vector(model).astype(np.float32), anchor)
    daemon.server.close()


def test_a_slot_sealed_before_the_first_step_is_not_lost(daemon: LedgerDaemon) -> None:
    begin = daemon.begin_session

    def begin_and_mix() -> None:
        begin()
        daemon.mix(np.ones(daemon.region.size, np.float32))
        daemon.seal()

    daemon.begin_session = begin_and_mix  # type: ignore[method-assign]
    model = small()
    start = vector(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=100)
    assert np.array_equal(vector(model), start)
    optimizer.step()
    assert np.allclose(vector(model), start + 1)


def test_attach_says_what_it_waits_for_and_for_how_long(daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.has_model = False
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with daemon.running(), caplog.at_level(logging.INFO, "gossipdp"), pytest.raises(UnreachableError) as caught:
        gossipdp.attach(model, optimizer, home=daemon.server.path.parent, timeout=2.0)
    assert caught.value.code == "GD-106" and caught.value.seen == "a member that has the model (25%)"
    assert "waiting for the model: a member that has the model (25%)" in caplog.text


def test_a_model_that_comes_is_told_once_and_then_every_ten_seconds(
    daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.has_model = False
    now = [100.0]
    session = Session(daemon.server.path.parent, Layout(small()), clock=lambda: now[0])

    def heard() -> str:
        session.poll()
        return session.waiting_for

    with daemon.running():
        ModelWait(session, None)()
        order = session.next_order()
        assert isinstance(order, Write)
        session.done(order, passed)
        until("the first word", lambda: heard() == "a member that has the model (25%)")
    with caplog.at_level(logging.INFO, "gossipdp.training"):
        for percent in range(1, 31):
            now[0] += 1.0
            daemon.server.send(links.Waiting("model from ab", percent / 100))
            text = f"model from ab ({percent}%)"
            until(text, lambda text=text: heard() == text)
    assert caplog.messages == [f"waiting for the model: model from ab ({percent}%)" for percent in (10, 20, 30)]
    session.close()


def test_all_that_an_attach_waits_for_has_one_deadline(daemon: LedgerDaemon) -> None:
    """It waits for the memory first, then for the model in it."""
    model, now = small(), [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    daemon.has_model = False
    session = Session(daemon.server.path.parent, Layout(model), clock=clock)
    wait = ModelWait(session, 100.0)
    with daemon.running():
        wait()
        order = session.next_order()
        assert isinstance(order, Write)
        session.done(order, passed)
        now[0] += 100.0
        with pytest.raises(UnreachableError, match="GD-106 no model to start from after 100 s"):
            wait()
    assert now[0] < 150.0
    session.close()


def test_an_attach_that_a_rank_cannot_follow_ends_in_time_and_says_why(daemon: LedgerDaemon) -> None:
    session = Session(daemon.server.path.parent, Layout(small()), clock=itertools.count().__next__)
    wait = ModelWait(session, 1000)
    with daemon.running(), pytest.raises(UnreachableError, match="GD-106") as caught:
        while True:
            wait()
            session.fail("a rank of this group cannot reach the daemon")
    assert caught.value.seen == "a rank of this group cannot reach the daemon"
    session.close()


@pytest.mark.parametrize(("code", "told"), [("GD-301", [(6, True, 5)]), ("GD-322", [])])
def test_a_process_that_is_refused_later_and_ends_alone_tells_the_daemon(
    daemon: LedgerDaemon, code: str, told: list[tuple[int, bool, int]]
) -> None:
    """GD-322 is the end of the run: that ends training as it should."""
    daemon.every, model = 100, small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 2, daemon.pump)
    daemon.server.refuse(code, "not served any more")
    train(model, optimizer, 3, daemon.pump)
    assert peer.alone
    peer.detach()
    daemon.pump()
    assert [
        (event.exit, event.alone, event.lost_steps) for event in daemon.events if isinstance(event, links.Told)
    ] == told


def test_no_daemon_is_gd_105_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    monkeypatch.setenv("GOSSIPDP_HOME", str(tmp_path))
    with pytest.raises(UnreachableError, match="GD-105 no daemon on this host") as caught:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "gossipdp up" in caught.value.do and str(tmp_path) in caught.value.seen


def test_a_killed_daemon_is_waited_for_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "GRACE", 0.1)
    daemon = LedgerDaemon(tmp_path)
    daemon.server._listening.socket.close()  # killed: the socket file stays
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnreachableError, match="GD-105"):
        gossipdp.attach(model, optimizer, home=tmp_path)
    again = LedgerDaemon(tmp_path)
    attach(again, model, optimizer)
    again.server.close()


@pytest.mark.parametrize(("attempt", "seconds"), [("", waiting.GRACE), ("3", waiting.SUPERVISED_GRACE)])
def test_a_daemon_that_its_supervisor_starts_again_is_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str, seconds: float
) -> None:
    (tmp_path / IDENTITY_FILE).touch()
    monkeypatch.setenv("GOSSIPDP_HOME", str(tmp_path))
    monkeypatch.delenv("GOSSIPDP_ATTEMPT", raising=False)
    if attempt:
        monkeypatch.setenv("GOSSIPDP_ATTEMPT", attempt)
    monkeypatch.setattr(waiting, "PAUSE", 0.0)
    ticks = itertools.count()
    session = Session(tmp_path, Layout(small()), clock=lambda: 0.25 * next(ticks))
    with pytest.raises(UnreachableError, match="GD-105"):
        ModelWait(session, 1000.0)()
    assert seconds <= session.now() <= seconds + 5.0
    session.close()


class TriesAgain(Exception):
    pass


def test_a_daemon_that_is_being_started_is_waited_for_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher starts the daemon first, and Python takes seconds to load."""
    connect, tried = links.Link.connect, []

    def connect_once(home: Path) -> links.Link:
        tried.append(home)
        if len(tried) > 1:
            raise TriesAgain
        return connect(home)

    monkeypatch.setattr(links.Link, "connect", connect_once)
    monkeypatch.setattr(waiting, "GRACE", 1000.0)
    monkeypatch.setattr(connection, "RETRY", 0.0)
    model = small()
    for expected, error in ((False, UnreachableError), (True, TriesAgain)):
        tried.clear()
        if expected:
            (tmp_path / IDENTITY_FILE).touch()
        with pytest.raises(error):
            gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=tmp_path)


@pytest.mark.parametrize(
    ("seen", "mismatch", "do"),
    [
        ("parameter 0 ...", Mismatch.TENSORS, "train the other"),
        ("whatever is said", Mismatch.FROZEN, FROZEN_DIFFER),
        ("whatever is said", Mismatch.SOME_FROZEN, FROZEN_DIFFER_PARTLY),
    ],
)
def test_a_refusal_is_raised_by_attach(daemon: LedgerDaemon, seen: str, mismatch: Mismatch, do: str) -> None:
    feed = daemon.feed

    def refuse(event: links.LinkEvent) -> None:
        if isinstance(event, links.ModelWritten):
            daemon.server.refuse("GD-301", "this model is not the network's", seen, "train the other", mismatch)
        else:
            feed(event)

    daemon.feed = refuse  # type: ignore[method-assign]
    model = small()
    with pytest.raises(MismatchError, match="GD-301") as caught:
        attach(daemon, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (caught.value.seen, caught.value.do) == (seen, do)


def test_a_second_training_process_is_refused(daemon: LedgerDaemon) -> None:
    model = small()
    peer = attach(daemon, model, torch.optim.SGD(model.parameters(), lr=0.1))
    second = Session(daemon.server.path.parent, Layout(model))
    with daemon.running(), pytest.raises(HardwareError, match="GD-503 another training process is attached"):
        ModelWait(second, 20)()
    assert not peer.alone


def test_detach_hands_over_the_last_steps(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(daemon, model, optimizer, every=4) as peer:
        train(model, optimizer, 6, daemon.pump)
    assert peer.alone
    daemon.pump()
    assert submits(daemon) == [(4, 4), (2, 2)]
    assert daemon.a is not None and np.array_equal(daemon.a, vector(model).astype(np.float32))
    assert daemon.events[-1] == links.Detached("it has detached", left=True)
    seen = len(daemon.events)
    train(model, optimizer, 5, daemon.pump)
    peer.detach()
    assert len(daemon.events) == seen and peer.steps == 6


def test_a_daemon_that_dies_leaves_training_alone_and_is_attached_to_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = LedgerDaemon(tmp_path, every=4)
    models = [small(), small()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    peer = attach(first, models[0], optimizers[0])
    train(models[0], optimizers[0], 10, first.pump)
    first.mix(np.ones(first.region.size, np.float32))
    anchor = first.a
    assert anchor is not None
    with caplog.at_level(logging.WARNING, "gossipdp"):
        first.server.close()
        train(models[0], optimizers[0], 5, seed=8)
        train(models[1], optimizers[1], 10)
        train(models[1], optimizers[1], 5, seed=8)
    assert equal(*models), "alone it is the bare optimizer"
    assert peer.alone and peer.steps == 15
    assert caplog.text.count("training goes on alone") == 1

    second = LedgerDaemon(tmp_path, every=4, anchor=anchor, clock=500)
    with caplog.at_level(logging.WARNING, "gossipdp"):
        again = lambda: train(models[0], optimizers[0], 1, second.pump)  # noqa: E731
        until("it is attached again", lambda: not peer.alone, meanwhile=again)
    assert np.array_equal(vector(models[0]).astype(np.float32), anchor), "x := a"
    assert peer.lost_steps == peer.steps - 8 and peer.lost_steps >= 7
    assert f"attached to the daemon again; {peer.lost_steps} steps" in caplog.text
    assert peer.clock == 500
    train(models[0], optimizers[0], 4, second.pump)
    assert submits(second) == [(4, 4)]
    second.server.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_daemon_that_took_the_live_model_over__the_process_keeps_its_parameters_and_all_steps_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: torch.dtype
) -> None:
    first = LedgerDaemon(tmp_path, every=4)
    models = [small().to(dtype) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    peer = attach(first, models[0], optimizers[0], samples_per_step=2)
    data = torch.randn(8, 20, dtype=dtype)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        train(models[0], optimizers[0])
        first.pump()
    first.server.close()
    for _ in range(3):
        train(models[0], optimizers[0])
    second = LedgerDaemon(tmp_path, every=4, anchor=np.zeros_like(first.a), keeps=True)
    second.has_model = False
    with caplog.at_level(logging.WARNING, "gossipdp"):
        while not second.written.run:
            train(models[0], optimizers[0])
            second.pump()
        written, at = second.written, peer.steps
        for _ in range(2):
            train(models[0], optimizers[0])
        second.begin_session()
        # To step the anchor there was a round, which the daemon tells before the process has begun.
        second.server.send(links.Pace(4, at + 50, 0))
        train(models[0], optimizers[0])
    for _ in range(peer.steps):
        train(models[1], optimizers[1])
    assert equal(*models) and not peer.alone, "nothing was loaded"
    assert (written.run, written.clock, written.steps, written.samples) == (second.run, at, at - 8, 2 * (at - 8))
    assert peer.lost_steps == 0 and peer.clock == peer.steps == at + 3
    assert f"it took this process's model over, with all {peer.steps} steps" in caplog.text
    second.pump()
    train(models[0], optimizers[0])
    second.pump()
    assert submits(second) == [(4, 8)] and np.array_equal(second.last, vector(models[0]).astype(np.float32))
    second.server.close()


def test_a_model_older_than_what_snapshots_brought_is_loaded__all_steps_that_are_gone_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = LedgerDaemon(tmp_path, every=4)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(first, model, optimizer)
    train(model, optimizer, 10, first.pump)
    first.server.close()
    second = LedgerDaemon(tmp_path, every=4, anchor=np.zeros_like(first.a), clock=3)
    begin = second.begin_session

    def begin_and_pace() -> None:
        begin()
        second.server.send(links.Pace(4, 90, 0))

    second.begin_session = begin_and_pace  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train(model, optimizer, 1, second.pump)
        until("it is attached again", lambda: not peer.alone, meanwhile=lambda: train(model, optimizer, 1, second.pump))
    assert peer.clock == 3 and peer.lost_steps == peer.steps - 3
    assert f"{peer.lost_steps} steps are lost, 5 of them from before the last snapshot" in caplog.text
    second.server.close()


def test_a_wait_for_the_model_after_a_restart_does_not_stop_training(tmp_path: Path) -> None:
    first = LedgerDaemon(tmp_path)
    model = small().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    peer = attach(first, model, optimizer)
    first.server.close()
    size = first.a.size  # type: ignore[union-attr]
    second = LedgerDaemon(tmp_path, anchor=np.full(size, 1.001, np.float32))
    second.has_model = False
    for _ in range(10):
        optimizer.step()
        second.pump()
    assert peer.alone and peer.steps == 10
    assert [type(event) for event in second.events] == [links.Attached, links.ModelWritten]
    second.begin_session()
    optimizer.step()
    assert not peer.alone
    assert set(vector(model).tolist()) == {1.0} and peer._layout is not None
    found = np.zeros(size, np.float32)
    peer._layout.read(found)
    assert np.array_equal(found[: size - 1], second.a[: size - 1]), "x + residual = a"
    second.server.close()


def test_a_refusal_after_a_restart_never_raises_in_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = LedgerDaemon(tmp_path)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(first, model, optimizer)
    first.server.close()
    second = LedgerDaemon(tmp_path)
    other = links.Link.connect(tmp_path)
    other.hello(Schema.of([("w", (3,), "float32", "parameter")]))
    second.pump()
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train(model, optimizer, 6, second.pump)
    assert peer.alone and caplog.text.count("GD-503 ") == 1, "said once, not every second"
    other.close()
    train(model, optimizer, 6, second.pump)
    assert not peer.alone
    second.server.close()
