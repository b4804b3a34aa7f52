"""When a whole network comes back, its model is the latest checkpoint that a live peer holds."""

from random import Random
from types import SimpleNamespace

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.course.election import ASKS, PATIENCE, Election
from gossipdp.protocol.events import CheckpointAhead, StateReady
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import chunk_parameters
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.manifest import signed_part as signed
from gossipdp.protocol.wire.messages import Has, PushPull, Standing, State, StateChunk, StateManifest, StateRequest
from tests.protocol.transfer.bootstrap_rig import HEARD, RESUME, SCHEMA, SETTINGS, A, B, C, D, Returning, record


def test_holder_of_the_latest_restores_once_all_remembered_members_have_answered():
    b = Returning()
    b.meet(A, C)
    b.says(A, Has.CHECKPOINT, 90, 9)
    b.says(C, Has.CHECKPOINT, 100, 9)
    b.run(HEARD - 0.2)
    assert b.restores == 0
    b.run(HEARD + 0.4)
    assert b.restores == 1 and HEARD < RESUME / 2


def test_remembered_member_that_is_absent_is_waited_for_until_the_deadline():
    b = Returning(remembered=(A, C, D))
    b.meet(A, C)
    b.says(A, Has.CHECKPOINT, 90, 9)
    b.says(C, Has.NOTHING)
    b.run(RESUME - 0.2)
    assert b.restores == 0
    b.run(RESUME + 0.4)
    assert b.restores == 1


def test_all_remembered_members_are_dialled_though_one_has_answered():
    """Otherwise two pairs that meet first would be two networks."""
    b = Returning(remembered=(A, C, D))
    b.meet(A)
    b.sent.clear()
    b.run(2.0)
    assert b.of(PushPull, to=C) and b.of(PushPull, to=D)


@pytest.mark.parametrize(
    ("other", "held", "restores"),
    [
        (A, (100, 10), 0),  # equal: the lower id
        (C, (100, 10), 1),
        (C, (100, 11), 0),  # as late, but more rounds
        (C, (101, 3), 0),
        (A, (99, 99), 1),
    ],
)
def test_of_two_peers_the_later_restores_and_of_equals_the_lower_id(other, held, restores):
    b = Returning(remembered=(other,))
    b.meet(other)
    b.says(other, Has.CHECKPOINT, *held)
    b.run(RESUME + 1.0)
    assert b.restores == restores


def test_later_member_is_fetched_from_once_it_is_ready_and_nothing_is_restored():
    b = Returning()
    b.meet(A, C)
    b.says(A, Has.CHECKPOINT, 90, 9)
    b.says(C, Has.CHECKPOINT, 120, 9)
    b.run(RESUME + 5.0)
    assert b.restores == 0 and not b.of(StateRequest)
    b.says(C, Has.MODEL, 121, 9)
    b.run(RESUME + 6.0)
    assert b.of(StateRequest, to=C) and not b.of(StateRequest, to=A)
    b.run(RESUME * (PATIENCE + 4))
    assert b.restores == 0


def back_beside(member, has, clock, rounds):
    """Peer B, back beside a member that it remembers and that has told what it holds."""
    b = Returning(remembered=(member,))
    b.meet(member)
    b.says(member, has, clock, rounds)
    return b


def test_later_member_that_never_becomes_ready_is_left_after_a_while():
    b = back_beside(C, Has.CHECKPOINT, 120, 9)
    b.run(RESUME * PATIENCE - 0.5)
    assert b.restores == 0
    b.run(RESUME * PATIENCE + 1.0)
    assert b.restores == 1


def test_later_member_that_dies_is_not_waited_for():
    b = back_beside(C, Has.CHECKPOINT, 120, 9)
    b.run(RESUME + 1.0)
    assert b.restores == 0
    del b.speaking[C]
    b.run(RESUME + 8.0)
    assert b.peer.view.members[C].state == State.FAILED and b.restores == 1


def test_later_member_whose_checkpoint_is_damaged_says_so_and_is_not_waited_for():
    b = back_beside(C, Has.CHECKPOINT, 120, 9)
    b.says(C, Has.NOTHING)
    b.says(C, Has.CHECKPOINT, 120, 9)  # comes late
    b.run(HEARD + 1.0)
    assert b.restores == 1


def test_messages_of_an_earlier_life_or_from_before_it_was_ready_do_not_count():
    b = Returning(remembered=(C,))
    b.meet(C, incarnation=7)
    b.says(C, Has.MODEL, 500, 50, incarnation=6)
    assert not b.of(StateRequest)
    b.says(C, Has.MODEL, 90, 9, incarnation=7)
    b.says(C, Has.CHECKPOINT, 80, 8, incarnation=7)
    b.run(RESUME + 2.0)
    assert b.of(StateRequest, to=C) and b.restores == 0


def test_ready_member_that_dies_before_it_has_served_is_not_waited_for():
    b = back_beside(C, Has.MODEL, 90, 9)
    b.run(RESUME * PATIENCE)
    assert b.of(StateRequest, to=C) and b.restores == 0, "alive and ready: no old state is restored beside it"
    del b.speaking[C]
    b.run(b.now + 8.0)
    assert b.restores == 1


def test_ready_member_that_starts_again_is_not_ready_any_more():
    b = back_beside(C, Has.MODEL, 90, 9)
    b.meet(C, incarnation=2)
    b.says(C, Has.CHECKPOINT, 90, 9, incarnation=2)
    b.run(RESUME + 1.0)
    assert b.restores == 1


def test_member_that_was_just_met_is_given_time_to_answer():
    b = Returning(remembered=())
    b.run(RESUME - 0.2)
    b.meet(C)
    b.run(RESUME + HEARD - 0.4)
    assert b.restores == 0
    b.run(RESUME + HEARD + 0.4)
    assert b.restores == 1


def test_peer_whose_newest_checkpoint_is_damaged_waits_again_if_another_is_later_now():
    b = back_beside(C, Has.CHECKPOINT, 95, 9)
    b.run(HEARD + 1.0)
    assert b.restores == 1
    b.peer.job_done(jobs.Restore(), jobs.Restored(SCHEMA.to_bytes(), 90, 9), b.now)
    b.collect()
    assert not b.peer.view.ready
    b.sent.clear()
    b.run(b.now + 1.0)
    said = b.of(Standing, to=C)[-1]
    assert (said.has, said.clock, said.rounds) == (Has.CHECKPOINT, 90, 9)
    b.says(C, Has.MODEL, 95, 9)
    b.run(b.now + 1.0)
    assert b.of(StateRequest, to=C) and b.restores == 1


def test_peer_whose_checkpoints_are_all_damaged_claims_none_and_fetches():
    b = back_beside(C, Has.CHECKPOINT, 95, 9)
    b.run(HEARD + 1.0)
    b.peer.job_done(jobs.Restore(), None, b.now)
    b.collect()
    b.sent.clear()
    b.says(C, Has.CHECKPOINT, 95, 9, reply=True)
    assert not b.peer.view.ready and b.of(Standing, to=C)[-1].has is Has.NOTHING
    b.says(C, Has.MODEL, 95, 9)
    b.run(b.now + 1.0)
    assert b.of(StateRequest, to=C) and b.restores == 1


def test_question_is_answered_by_a_returning_peer_and_by_a_ready_one():
    b = Returning(remembered=())
    b.meet(C)
    b.sent.clear()
    b.says(C, Has.NOTHING, reply=True)
    assert b.of(Standing, to=C) == [Standing(1, Has.CHECKPOINT, 100, 10, False)]
    b.run(RESUME + HEARD + 1.0)
    b.peer.job_done(jobs.Restore(), jobs.Restored(SCHEMA.to_bytes(), 100, 10), b.now)
    b.collect()
    assert [event.origin for event in b.events if isinstance(event, StateReady)] == ["restored"]
    b.sent.clear()
    b.says(C, Has.NOTHING, reply=True)
    assert b.of(Standing, to=C) == [Standing(1, Has.SPARE, 100, 10, False)]
    b.says(C, Has.NOTHING)
    assert len(b.of(Standing)) == 1


@pytest.mark.parametrize(("held", "network", "ahead"), [(100, 80, True), (100, 89, True), (100, 90, False)])
def test_fetching_a_model_earlier_than_the_own_checkpoint_is_reported_before_it_is_used(held, network, ahead):
    """Two rounds of five steps, of which no other peer may know, are not reported."""
    b = Returning(held=Held(held, 10))
    b.meet(C)
    b.says(C, Has.MODEL, network, 8)
    transfer = b.of(StateRequest, to=C)[-1].transfer
    hashes = b"h" * 16
    manifest = StateManifest(
        transfer, 1, SCHEMA.size, chunk_parameters(SCHEMA.size), network, 8, SCHEMA.digest, SETTINGS
    )
    b.tell(C, manifest, [SCHEMA.to_bytes(), hashes, signed(manifest, SCHEMA.to_bytes(), hashes)])
    b.tell(C, StateChunk(transfer, 1, 0), [b"x" * 600])
    [adopt] = [job for job in b.asked if isinstance(job, jobs.Adopt)]
    b.peer.job_done(adopt, jobs.Checked(True), b.now)
    b.collect()
    told = [event for event in b.events if isinstance(event, CheckpointAhead | StateReady)]
    assert told == [CheckpointAhead(held, 10, network)] * ahead + [StateReady("received", network)]


@pytest.mark.parametrize(("clock", "restores"), [(90, 0), (89, 1)])
def test_spare_gives_its_model_to_a_peer_with_an_earlier_checkpoint_and_not_with_a_later_one(clock, restores):
    b = Returning(remembered=(A,))
    b.meet(A)
    b.says(A, Has.SPARE, clock, 9)
    b.run(RESUME + HEARD + 1.0)
    assert b.restores == restores and bool(b.of(StateRequest, to=A)) == (not restores)


PEERS = [bytes([number]) * 32 for number in range(100, 104 + ASKS)]
LATEST = PEERS[0]


def test_of_many_members_the_one_with_the_latest_checkpoint_is_asked_in_every_period() -> None:
    outputs = Outputs()
    membership = SimpleNamespace(
        me=record(B), members={peer: record(peer) for peer in PEERS}, config=SimpleNamespace(join_interval=1.0)
    )
    config = SimpleNamespace(resume_after=99.0)
    parts = SimpleNamespace(membership=membership, random=Random(1), outputs=outputs, config=config)
    election = Election(parts, tolerance=10)
    election.begin(0.0, [], Held(100, 10), alone=False)
    election.meet(PEERS, 0.0)
    election.hear(Standing(1, Has.CHECKPOINT, 500, 50, False), LATEST, 0.0)
    for period in range(10):
        outputs.messages.clear()
        election.handle_timer(float(period))
        asked = [said.to for said in outputs.messages]
        assert asked[0] == LATEST and len(set(asked)) == len(asked) == ASKS
