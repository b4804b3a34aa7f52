"""`peer.log_to`: what a tracker gets, and that training waits for none."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.runtime.link.daemon_status import ask_status
from gossipdp.training import attachment
from gossipdp.training.adapters import trackers
from gossipdp.training.adapters.trackers import Points, TrackerLog, points_of
from gossipdp.training.attachment import Attachment
from peers.control import ControlServer
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon
from tests.training.models import attach, small, train
from tests.training.repeated import repeated

STATUS = {
    "round": 3, "clock": 150, "members": {"alive": 4, "failed": 1}, "samples_per_second": 12.5, "stall_seconds": 0.5,
    "network_samples_per_second": None, "consensus_distance": 1e-4, "sent_bytes": 1000, "received_bytes": 900,
    "loss": 9.0, "notices": ["GD-401"],
}  # fmt: skip


class Scalars:
    """As TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []
        self.flushed = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points.append((tag, scalar_value, global_step))

    def flush(self) -> None:
        self.flushed += 1


class Run:
    """As a run of W&B."""

    def __init__(self) -> None:
        self.points: list[tuple[Points, int]] = []

    def log(self, data: Points, step: int) -> None:
        self.points.append((data, step))


def test_both_kinds_of_trackers_get_the_status_and_the_losses_at_the_networks_clock(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "ask_status", lambda home: STATUS)
    daemon.clock = 150
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    writer, run = Scalars(), Run()
    for each in (writer, run):
        peer.log_to(each)
    train(model, optimizer, 2, daemon.pump)
    peer.report(loss=1.5)
    peer.detach()
    expected = {
        "gossipdp/loss": 1.5, "gossipdp/round": 3, "gossipdp/members": 4, "gossipdp/samples_per_second": 12.5,
        "gossipdp/consensus_distance": 1e-4, "gossipdp/sent_bytes": 1000, "gossipdp/received_bytes": 900,
        "gossipdp/stall_seconds": 0.5,
    }  # fmt: skip
    assert run.points == [(expected, 152)], "the last point, at the end"
    assert writer.points == [(name, expected[name], 152) for name in run.points[0][0]] and writer.flushed == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "gossipdp log"]
    peer.log_to(writer)
    assert len(writer.points) == len(expected), "after the end nothing is logged"


def test_a_log_does_not_keep_an_attachment_whose_model_is_gone(pumped: PumpedDaemon) -> None:
    def attached() -> Attachment:
        model = small()
        peer = gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        peer.log_to(Run(), every=1000.0)
        return peer

    attached()
    attached().detach()  # the second attach has made room
    assert not [thread for thread in threading.enumerate() if thread.name == "gossipdp log"]


def test_without_gossip_the_losses_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model, run = small(), Run()
    with gossipdp.attach(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1)) as peer:
        peer.log_to(run)
        train(model, optimizer, 3)
        peer.report(loss=1.0, eval_loss=float("nan"))
    assert run.points == [({"gossipdp/loss": 1.0}, 3)]


def test_a_tracker_that_hangs_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, free = threading.Event(), threading.Event()

    class Hangs(Run):
        def log(self, data: Points, step: int) -> None:
            hanging.set()
            free.wait()

    monkeypatch.setattr(trackers, "CLOSES_WITHIN", 0.01)
    tracker = TrackerLog(Hangs(), 0.001, lambda: ({"loss": 1.0}, 7))
    tracker.start()
    hanging.wait()
    tracker.close()
    assert "Hangs is still busy" in caplog.text
    free.set()
    tracker._thread.join()


def test_points_that_came_due_while_the_tracker_was_busy_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    tracker = TrackerLog(run := Run(), 10.0, lambda: ({"loss": 1.0}, 7), clock=lambda: now)
    assert tracker.turn(100.0) == 110.0 and tracker.dropped == 0
    now = 145.5  # as after a point that was due at 110 and took so long
    assert tracker.turn(110.0) == 150.0 and tracker.dropped == 3 and len(run.points) == 2
    assert "a point took 36 s; 3 points of the log were dropped so far" in caplog.text


def test_errors_of_a_tracker_are_told_once_and_training_does_not_hear_of_them(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, data: Points, step: int) -> None:
            raise ConnectionError("the server is away")

    tracker = TrackerLog(Broken(), 10.0, lambda: ({"loss": 1.0}, 7))
    with caplog.at_level(logging.WARNING, "gossipdp"):
        for _ in range(3):
            tracker.point()
    assert tracker.dropped == 3 and caplog.text.count("the server is away") == 1


@pytest.mark.parametrize(("run", "every"), [(object(), 10.0), (Run(), 0.0)])
def test_what_cannot_be_logged_to_is_refused(daemon: LedgerDaemon, run: Any, every: float) -> None:
    model = small()
    peer = attach(daemon, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="GD-311"):
        peer.log_to(run, every)


def test_the_daemons_status_is_asked_over_its_control_socket(tmp_path: Path) -> None:
    assert ask_status(tmp_path, 1.0) is None and points_of(None) == {}
    server = ControlServer(tmp_path)

    def answer() -> None:
        for request in server.handle():
            assert request.verb == "status"
            request.reply(STATUS)

    with repeated(answer):
        assert ask_status(tmp_path, 20.0) == STATUS
    server.close()
    assert ask_status(tmp_path, 1.0) is None
