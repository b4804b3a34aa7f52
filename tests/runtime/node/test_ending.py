"""The end of a run at the node: the last snapshot, the end of training, the final files."""

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipdp.errors import DataError
from gossipdp.protocol import events
from gossipdp.protocol.course.ending import Counts, FinishProgress
from gossipdp.protocol.wire.messages import Member, Phase, State
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.node.ending import GONE_EACH, GONE_WITHIN, LAST_EACH, LAST_STEP, Ending
from gossipdp.runtime.node.training import TrainingSessions
from simulations.processes.progress import until

ME, OTHER = b"m" * 32, b"o" * 32
NEAR = events.Closeness(over=True, agrees=True, before=1e-2, now=1e-7, exchanges=3)
FAR = NEAR._replace(agrees=False, now=1e-3)


class Training:
    def __init__(self, *, trains: bool) -> None:
        self.trains = trains
        self.ended: list[str] = []

    def hurry(self) -> bool:
        return self.trains

    def end(self) -> None:
        self.ended.append("sent away")


class Outside:
    def __init__(self, *, supervised: bool = True, error: Exception | None = None) -> None:
        self.supervised, self.error = supervised, error
        self.told: list[str] = []
        self.written: list[tuple[Path, Any]] = []

    def end_training(self) -> bool:
        self.told.append("end training")
        return self.supervised

    def write(self, checkpoint: Path, about: Any) -> Path:
        if self.error is not None:
            raise self.error
        self.written.append((checkpoint, about))
        return Path("/home/final")


class Rig:
    def __init__(self, *, trains: bool = True, outside: Outside | None = None, parameters: int = 0) -> None:
        self.progress = FinishProgress(Phase.RUNNING, math.inf, (), (ME,))
        self.notices: list[tuple[str, str]] = []
        names = {
            peer: Member(peer, name, "10.0.0.1:4710", 1, 0, State.ALIVE)
            for peer, name in ((ME, "me"), (OTHER, "other"))
        }
        model = SimpleNamespace(schema=SimpleNamespace(size=parameters)) if parameters else None
        self.view = SimpleNamespace(
            id=ME,
            members=names,
            restart_contacts=[],
            usual_round=2.0,
            model=model,
            network_steps=140,
            network_samples=560,
            own_progress=SimpleNamespace(rounds=3),
            report=lambda peer: SimpleNamespace(steps=20),
            closeness=NEAR,
            finishing=True,
            finish_progress=lambda now: self.progress,
            final_counts=Counts(70, 120, 480),
            handed_in=True,
        )
        peer = SimpleNamespace(view=self.view)
        told = SimpleNamespace(notice=lambda code, text, now: self.notices.append((code, text)))
        status = SimpleNamespace(transport=SimpleNamespace(run=b"\7" * 16))
        context = cast(NodeContext, SimpleNamespace(peer=peer, status=status, notices=told))
        self.training, self.outside = Training(trains=trains), outside or Outside()
        self.ending = Ending(context, cast(TrainingSessions, self.training), self.outside)

    def written(self) -> None:
        """Wait for the thread that writes."""
        until("it is written", lambda: not self.ending.writing, meanwhile=lambda: self.ending.tick(0.0))


def test_training_ends_after_one_more_snapshot() -> None:
    rig = Rig()
    rig.ending.observe(events.FinishBegan(OTHER, True), 10.0)
    rig.ending.tick(10.0 + LAST_STEP - 1.0)
    assert rig.outside.told == [] and rig.ending.describe(11.0)["text"] == "waits for the last snapshot of training"
    rig.ending.observe(events.SnapshotTaken(4), 12.0)
    assert (
        len(rig.outside.told) == 1 and rig.ending.describe(12.0)["text"] == "waits for the end of the training process"
    )
    rig.ending.tick(12.0 + GONE_WITHIN - 1.0)
    assert not rig.training.ended, "its supervisor ends it"
    rig.ending.tick(12.0 + GONE_WITHIN)
    rig.ending.tick(100.0)
    assert len(rig.training.ended) == len(rig.outside.told) == 1


def test_phase_that_comes_again_with_the_same_text_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gossipdp.node")
    rig = Rig()
    for phase in (Phase.DONE, Phase.DONE, Phase.CLOSING, Phase.DONE):
        rig.progress = rig.progress._replace(phase=phase)
        rig.ending.observe(events.FinishPhase(phase), 12.0)
    done, closing, again = [record.getMessage() for record in caplog.records]
    assert done == again == "finishing: all peers are done" and "peers average" in closing


def test_training_of_a_large_model_has_longer_to_end() -> None:
    rig = Rig(parameters=10**9)
    rig.ending.observe(events.FinishBegan(OTHER, True), 10.0)
    rig.ending.tick(10.0 + LAST_STEP + 1e9 * LAST_EACH - 1.0)
    assert not rig.outside.told
    rig.ending.observe(events.SnapshotTaken(4), 12.0)
    rig.ending.tick(12.0 + GONE_WITHIN + 1e9 * GONE_EACH - 1.0)
    assert not rig.training.ended
    rig.ending.tick(12.0 + GONE_WITHIN + 1e9 * GONE_EACH)
    assert rig.training.ended


def test_training_that_takes_no_step_ends_without_a_snapshot() -> None:
    rig = Rig()
    rig.ending.observe(events.FinishBegan(b"", True), 10.0)
    rig.ending.tick(10.0 + LAST_STEP)
    assert len(rig.outside.told) == 1


@pytest.mark.parametrize(("trains", "supervised"), [(False, True), (False, False)])
def test_without_a_round_to_wait_for_training_ends_at_once(trains: bool, supervised: bool) -> None:
    rig = Rig(trains=trains, outside=Outside(supervised=supervised))
    rig.ending.observe(events.FinishBegan(b"", False), 10.0)
    assert len(rig.outside.told) == 1 and bool(rig.training.ended) is not supervised


def test_final_files_are_written_from_the_last_checkpoint_and_say_what_is_known() -> None:
    rig = Rig()
    rig.ending.observe(events.Finished((ME, OTHER), NEAR), 20.0)
    rig.ending.saved(Path("/home/checkpoints/checkpoint-00000009"))
    rig.written()
    [(checkpoint, about)] = rig.outside.written
    assert checkpoint.name == "checkpoint-00000009" and rig.ending.final == Path("/home/final")
    assert about["peers"] == [{"id": ME.hex(), "name": "me"}, {"id": OTHER.hex(), "name": "other"}]
    here = about["this_host"]
    assert here["relative_distance"] == pytest.approx(1e-5) and here["agrees"] and not rig.notices
    assert (about["clock"], here["rounds"]) == (70, 3), "as in the list of checkpoints"
    assert (about["steps"], about["samples"]) == (120, 480), "of the peers that hold the model"
    assert (here["network_steps"], here["network_samples"]) == (140, 560)


def test_final_files_name_their_peers_in_one_order_on_all_hosts() -> None:
    written = []
    for closers in ((ME, OTHER), (OTHER, ME)):
        rig = Rig()
        rig.ending.observe(events.Finished(closers, NEAR), 20.0)
        rig.ending.saved(Path("/checkpoint"))
        rig.written()
        written.append(rig.outside.written[0][1])
    assert written[0] == written[1]


@pytest.mark.parametrize("closers", [(ME, OTHER), (ME,)])
def test_a_distance_that_is_not_reached_is_a_notice_and_nothing_is_called_final(closers: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "gossipdp.node")
    rig = Rig()
    rig.ending.observe(events.Finished(closers, FAR._replace(outliers=(OTHER,))), 20.0)
    rig.ending.saved(Path("/checkpoint"))
    rig.written()
    [(code, text)] = rig.notices
    assert code == "GD-404" and "1.0e-01 of the usual" in text and "too far away: other" in text
    assert rig.outside.written[0][1]["this_host"]["agrees"] is False
    assert rig.ending.final is None and "final model in" not in caplog.text and "not final" in caplog.text


@pytest.mark.parametrize("known", [False, True])
def test_a_peer_that_finishes_alone_warns_if_it_knew_others(caplog: pytest.LogCaptureFixture, known: bool) -> None:
    """Two hosts that had lost each other finished with two models, and nothing warned."""
    rig = Rig()
    rig.view.restart_contacts = [SimpleNamespace(id=OTHER, name="other", address="10.0.0.2:4710")] if known else []
    with caplog.at_level("INFO"):
        rig.ending.observe(events.Finished((ME,), NEAR), 20.0)
    [record] = caplog.records
    assert record.levelname == ("WARNING" if known else "INFO")
    assert record.getMessage().endswith("took no part: other" if known else "is this peer's own")


def other(phase: Phase, state: State = State.ALIVE, *, calls: bool = False) -> events.MemberChanged:
    return events.MemberChanged(Member(OTHER, "other", "", 1, 0, state, phase=phase, calls=calls), State.ALIVE)


def test_members_that_wait_for_this_peer_are_told_with_the_time(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.ending.observe(other(Phase.WAITING, calls=True), 9.0)
    assert rig.ending.waiting(10.0) == {}, "all end together"
    for now in (10.0, 12.0):
        rig.ending.observe(other(Phase.WAITING), now)
    assert rig.ending.waiting(15.0) == {"other": 5.0}
    rig.ending.observe(other(Phase.WAITING, State.LEFT), 16.0)
    assert rig.ending.waiting(17.0) == {}


@pytest.mark.parametrize("handed_in", [True, False])
def test_a_peer_that_ends_early_calls_nothing_final_and_says_where_the_final_model_will_be(
    handed_in: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gossipdp.node")
    rig = Rig()
    rig.view.handed_in = handed_in
    early = events.Finished((ME,), NEAR._replace(agrees=False), without=(OTHER,), early=True)
    rig.ending.observe(early, 20.0)
    rig.ending.saved(Path("/checkpoint"))
    rig.written()
    [record, *_] = caplog.records
    assert record.levelname == "WARNING" and not rig.notices
    assert f"on other (6f6f6f6f), and {'includes' if handed_in else 'lacks'} this host's last" in record.getMessage()
    here = rig.outside.written[0][1]["this_host"]
    assert here["early"] and not here["agrees"] and rig.ending.final is None
    assert here["without"] == [{"id": OTHER.hex(), "name": "other", "state": "alive", "steps": 20}]


def test_a_final_model_names_members_that_handed_in_and_members_that_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gossipdp.node")
    rig = Rig()
    rig.ending.observe(events.Finished((ME,), NEAR, handed_in=(OTHER,)), 20.0)
    rig.ending.observe(events.Finished((ME, b"x" * 32), NEAR, without=(OTHER,)), 20.0)
    rig.ending.observe(events.Finished((ME,), NEAR, without=(OTHER,)), 20.0)
    handed, _, lacks, alone = [record.getMessage() for record in caplog.records]
    assert "with the last steps of other" in handed and "lacks the last steps of other" in lacks
    assert alone.endswith("took no part: other")
    rig.ending.observe(events.Finished((ME,), NEAR, handed_in=(OTHER,)), 20.0)
    rig.ending.saved(Path("/checkpoint"))
    rig.written()
    here = rig.outside.written[0][1]["this_host"]
    assert [each["name"] for each in here["handed_in"]] == ["other"] and not here["without"] and not here["early"]


def test_nothing_is_written_without_a_model_or_without_a_checkpoint() -> None:
    rig = Rig()
    rig.ending.saved(Path("/checkpoint"))
    rig.ending.observe(events.Finished((), NEAR), 20.0)
    rig.ending.saved(Path("/checkpoint"))
    rig.ending.observe(events.Finished((ME,), NEAR), 20.0)
    rig.ending.saved(DataError("GD-602", "the disk is full"))
    assert not rig.ending.writing and not rig.outside.written


@pytest.mark.parametrize("error", [DataError("GD-602", "full"), OSError("broken")])
def test_files_that_cannot_be_written_are_an_error_in_the_log(error: Exception, caplog: Any) -> None:
    rig = Rig(outside=Outside(error=error))
    rig.ending.observe(events.Finished((ME,), NEAR), 20.0)
    rig.ending.saved(Path("/checkpoint"))
    with caplog.at_level(logging.ERROR, "gossipdp.node"):
        rig.written()
    assert "GD-602" in caplog.text and rig.ending.final is None


def test_what_is_waited_for_is_told_in_words() -> None:
    rig = Rig()
    rig.progress = FinishProgress(Phase.WAITING, 42.4, (OTHER,), (ME,))
    assert rig.ending.describe(0.0)["text"] == "waits for members that train: other, at most 42 s more"
    rig.progress = rig.progress._replace(handed_in=True)
    text = "has handed over its last steps, and waits for members that train: other, at most 42 s more"
    assert rig.ending.describe(0.0)["text"] == text
    rig.progress = FinishProgress(Phase.RUNNING, 12.0, (OTHER,), (), handing=True)
    text = "hands over its last steps to members that train: other, at most 12 s more"
    assert rig.ending.describe(0.0)["text"] == text
    rig.progress = FinishProgress(Phase.CLOSING, math.inf, (OTHER,), (ME, OTHER))
    text = rig.ending.describe(0.0)["text"]
    assert text.startswith("2 peers average; exchanges made: 3; measured here: 1.0e-07")
    rig.progress = FinishProgress(Phase.DONE, 9.0, (OTHER,), (ME, OTHER))
    assert rig.ending.describe(0.0)["text"] == "this peer is done, and waits for other, at most 9 s more"
