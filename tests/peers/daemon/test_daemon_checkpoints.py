"""Checkpoints of the daemon: ahead of the network, pinned, or not written."""

from pathlib import Path

import pytest

from gossipdp.errors import DataError
from gossipdp.protocol import jobs
from gossipdp.protocol.course.course import Replacement
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import CheckpointAhead
from gossipdp.protocol.model import Model
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import files
from gossipdp.runtime.storage.store import Store
from tests.peers.daemon.homes_and_nodes import RUN, Start, noticed, save, shown


def test_checkpoint_ahead_of_the_network_is_pinned_and_both_clocks_are_told(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    save(where, 90)
    path = save(where, 120)
    node = start()
    node._act(CheckpointAhead(120, 12, 80), 0.0)
    store = Store(where / "checkpoints", keep=1)
    assert store.pinned(path) and [store.pinned(each) for each in store.list()] == [False, True]
    [notice] = shown(node.status)
    assert notice.startswith("GD-605 ") and "step 80 " in notice and "step 120" in notice and str(path) in notice
    save(where, 81)
    save(where, 82)
    store.prune()
    assert [Store.verify(each).meta.clock for each in store.list()] == [120, 82]


def test_fifth_checkpoint_ahead_costs_the_first_its_pin_and_that_is_told(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    first = save(where, 100)
    node = start()
    for clock in (100, 200, 300, 400, 500):
        if clock > 100:
            save(where, clock)
        node._act(CheckpointAhead(clock, clock // 10, 80), 0.0)
    assert [notice[:6] for notice in shown(node.status)] == ["GD-605"] * 5 + ["GD-606"]
    assert str(first) in shown(node.status)[-1]
    assert noticed(node) == {"GD-605": 5.0, "GD-606": 1.0}


def test_checkpoint_that_cannot_be_looked_at_is_told_and_the_peer_goes_on(where: Path, start: Start) -> None:
    node = start()
    (where / "checkpoints").rmdir()
    (where / "checkpoints").write_bytes(b"no directory")
    node._act(CheckpointAhead(120, 12, 80), 0.0)
    assert [notice[:6] for notice in shown(node.status)] == ["GD-601"] and noticed(node) == {"GD-601": 1.0}
    assert node._jobs.restore()[0] is None


def test_checkpoint_that_could_not_be_written_is_told_counted_and_tried_again_soon(where: Path, start: Start) -> None:
    node = start()
    now = node._clock()
    node._checkpoints.due = now + node._checkpoints._config.checkpoint_every
    node._checkpoints.saved(DataError("GD-602", "checkpoint-00000001 could not be written", seen="No space left"))
    assert shown(node.status) == ["GD-602 checkpoint-00000001 could not be written"]
    assert noticed(node) == {"GD-602": 1.0}
    assert 0.05 < (node._checkpoints.due - now) / node._checkpoints._config.checkpoint_every < 0.5
    node._checkpoints.writer.busy = True
    node._checkpoints.due = now
    node._tick(now)
    assert "still being written" in shown(node.status)[-1] and noticed(node) == {"GD-602": 2.0}
    assert node._checkpoints.due == now + node._checkpoints._config.checkpoint_every


@pytest.mark.parametrize("reason", [Reason.APART, Reason.LAG])
def test_peer_that_gives_its_model_up_goes_on_once_that_is_saved_and_pinned(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    begun: list[bool] = []
    done: list[jobs.Job] = []
    asked = iter([jobs.Keep(reason)])
    monkeypatch.setattr(node._checkpoints, "save", lambda: begun.append(True) or True)
    monkeypatch.setattr(node.peer, "next_job", lambda: next(asked, None))
    monkeypatch.setattr(node.peer, "job_done", lambda job, result, now: done.append(job))
    node._checkpoints.writer.busy = True
    node._drain(0.0)
    assert not begun
    node._checkpoints.writer.busy = False
    node._checkpoints.saved(save(where, 90))
    assert begun == [True] and not done
    path = save(where, 100)
    node._checkpoints.saved(path)
    assert done == [jobs.Keep(reason)]
    pinned = reason is Reason.APART
    assert Store.pinned(path) == pinned and noticed(node) == {"GD-604": 1.0, **({"GD-607": 1.0} if pinned else {})}
    node._checkpoints.saved(save(where, 110))
    assert len(done) == 1


def test_peer_whose_model_cannot_be_saved_follows_all_the_same(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    done: list[jobs.Job] = []
    monkeypatch.setattr(node._checkpoints, "save", lambda: True)
    monkeypatch.setattr(node.peer, "job_done", lambda job, result, now: done.append(job))
    node._checkpoints.keep(jobs.Keep(Reason.APART))
    node._checkpoints.saved(DataError("GD-602", "checkpoint-00000001 could not be written", seen="No space left"))
    assert done == [jobs.Keep(Reason.APART)] and noticed(node) == {"GD-604": 1.0, "GD-602": 1.0}


def test_of_a_model_that_is_half_another_s_no_checkpoint_is_made(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    saved: list[bool] = []
    monkeypatch.setattr(node._checkpoints, "save", lambda: saved.append(True) or True)
    schema = Schema.of([("w", (300,), "float32", "parameter")])
    node.peer._replica.model = Model.of(schema.to_bytes(), bytes(16), 0, 0)
    joiner = node.peer._replica._new_joiner()
    node.peer._replica._replacement = Replacement(Reason.LAG, joiner, 0.0, kept=True)
    assert not node.checkpoint() and not saved
    node.peer._replica._replacement = None
    assert node.checkpoint() and saved == [True]
