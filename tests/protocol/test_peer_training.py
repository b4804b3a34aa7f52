"""The training process of a whole peer: it attaches, is refused, dies, and is followed by another."""

import dataclasses

import pytest

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.events import Notice, RoundSettled, SessionOpened, SessionRefused, SnapshotTaken, StateReady
from gossipdp.protocol.schema import Frozen, Schema
from tests.protocol.peer_rig import OTHER, SCHEMA, Town, configured, founded


def test_attach_with_another_schema_is_gd_301_and_names_the_first_difference():
    town = founded()
    town.start(1)
    town.run(2.0)
    trainer = town.train(1, OTHER)
    town.run(1.0)
    assert trainer.refused == "GD-301" and not trainer.session
    [refused] = town.of(1, SessionRefused)
    assert "w (8392,)" in refused.reason and "w (8292,)" in refused.reason


def test_attach_before_the_state_with_another_schema_is_gd_301_when_it_comes():
    town = founded()
    town.start(1)
    trainer = town.train(1, OTHER)
    town.run(5.0)
    assert trainer.refused == "GD-301" and town.peer(1).view.ready


@pytest.mark.parametrize(
    ("founder", "here", "refused"),
    [
        (b"one revision....", b"one revision....", False),
        (b"one revision....", b"another revision", True),
        (b"one revision....", b"", False),
        (b"", b"another revision", False),
    ],
)
def test_attach_on_top_of_other_frozen_parameters_is_gd_301_where_both_tell_of_theirs(founder, here, refused):
    def on_top_of(digest):
        return Schema(SCHEMA.entries, [Frozen("base.weight", digest)] if digest else [])

    town = Town()
    town.start(0, found=True)
    town.train(0, on_top_of(founder))
    town.run(0.5)
    town.start(1)
    trainer = town.train(1, on_top_of(here))
    town.run(5.0)
    assert bool(trainer.session) is not refused
    told = [event.reason for event in town.of(1, SessionRefused)]
    assert told == ["frozen parameter base.weight: other values, and so 1 of 1"] * refused


def test_other_settings_are_gd_303_and_no_state_is_taken():
    town = founded()
    town.hosts[1].config = configured(settings=b"other settings..")
    town.start(1)
    town.run(5.0)
    assert not town.peer(1).view.ready and "GD-303" in {event.code for event in town.of(1, Notice)}


def test_founding_interrupted_by_a_new_training_process_ends_with_one_session():
    town = Town()
    town.net.set_conditions(dataclasses.replace(town.net.conditions, job=0.1))
    town.start(0, found=True)
    first = town.train(0)
    town.run(0.25)
    first.die()
    town.run(0.01)
    second = town.train(0)
    town.run(3.0)
    assert [event.origin for event in town.of(0, StateReady)] == ["founded"]
    assert len(town.of(0, SessionOpened)) == 1 and second.session == 1


def test_training_process_that_dies_while_waiting_for_the_model_leaves_nothing_behind():
    town = founded()
    town.start(1)
    trainer = town.train(1)
    trainer.die()
    town.run(5.0)
    assert town.peer(1).view.ready and not town.of(1, SessionOpened)
    again = town.train(1)
    town.run(2.0)
    assert again.session == 1


def test_training_process_that_dies_goes_on_from_the_anchor():
    town = founded()
    town.run(5.0)
    town.trainers[0].die()
    town.run(0.5)
    anchor = town.hosts[0].algorithm.ledger.a.copy()
    trainer = town.train(0)
    town.run(0.1)
    assert trainer.session == 2 and (trainer.x == anchor).all()


def test_snapshot_of_an_older_session_is_dropped_and_said_so():
    town = founded()
    clock = town.peer(0).view.clock
    town.net.command(town.hosts[0], "submit", lambda peer: peer.submit(7, 1, 0, 5, 5, town.net.now))
    assert town.of(0, SnapshotTaken)[-1] == SnapshotTaken(1, "session")
    assert town.peer(0).view.clock == clock


def test_a_new_training_process_is_not_told_of_a_round_of_its_predecessor():
    town = founded(3, sync=True)
    for number in (1, 2):
        town.start(number)
        town.train(number)
    town.run(10.0)
    peer, until = town.peer(1), town.net.now + 20.0
    while not (peer._replica._unsettled and peer.view.partner) and town.net.now < until:
        town.run(0.001)
    assert peer._replica._unsettled and peer.view.partner
    town.trainers[1].die()
    town.run(2.0)
    town.events[1].clear()
    town.train(1)
    town.run(3.0)
    told = [event for event in town.events[1] if isinstance(event, RoundSettled | SnapshotTaken)]
    assert isinstance(told[0], SnapshotTaken) and any(isinstance(event, RoundSettled) for event in told)


@pytest.mark.parametrize(("sync", "until"), [(True, Objection.BUSY), (False, Objection.IDLE)])
def test_process_that_has_not_made_a_round__is_waited_for_in_mode_sync_alone(sync, until):
    town = founded(2, sync=sync)
    town.start(1)
    town.run(3.0)
    assert town.peer(1)._replica.averaging._offers.rests() == Objection.IDLE
    town.train(1)
    end = town.net.now + 20.0
    while not town.peer(1).view.session_open and town.net.now < end:
        town.run(0.001)
    assert town.peer(1)._replica.averaging._offers.rests() == until
    town.run(10.0)
    assert town.peer(1)._replica.averaging._offers.rests() is None
