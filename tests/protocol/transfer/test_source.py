"""The source of a transfer: what it freezes, serves and drops."""

import dataclasses

from gossipdp.protocol.wire.messages import StateAsk, StateChunk, StateRefuse, StateRequest
from tests.protocol.transfer.transfer_rig import CHUNKS, A, B, Giver, Taker, carry, close_to


def test_source_without_a_model_refuses():
    giver = Giver(A)
    giver.source.receive(StateRequest(5), B, None, 0.0)
    assert giver.outputs.messages[0].message == StateRefuse(5, "joining")


def test_source_freezes_once_for_two_joiners_and_anew_when_stale():
    giver = Giver(A)
    giver.source.receive(StateRequest(1), B, giver.model, 0.0)
    giver.source.receive(StateRequest(2), b"c" * 32, giver.model, 0.0)
    assert giver.work() == CHUNKS
    assert [envelope.message.transfer for envelope in giver.outputs.messages] == [1, 2]
    giver.source.receive(StateRequest(3), B, giver.model, 31.0)
    assert giver.work() == 0, "the model has not moved"
    giver.model = dataclasses.replace(giver.model, rounds=giver.model.rounds + 3)
    giver.source.receive(StateRequest(4), B, giver.model, 31.0)
    assert giver.work() == CHUNKS
    assert len({envelope.message.snapshot for envelope in giver.outputs.messages}) == 2


def test_source_freezes_several_chunks_at_once_and_forgets_those_of_a_dropped_snapshot():
    giver = Giver(A, ahead=3)
    giver.source.receive(StateRequest(1), B, giver.model, 0.0)
    assert [job.chunk for job in giver.outputs.jobs] == [0, 1, 2]
    early = [(job, giver.algorithm.run(job)) for job in giver.outputs.jobs]
    giver.outputs.jobs.clear()
    giver.source.frozen(*early[0], giver.model)
    assert [job.chunk for job in giver.outputs.jobs] == [3]
    early += [(job, giver.algorithm.run(job)) for job in giver.outputs.jobs]
    giver.outputs.jobs.clear()
    giver.source.forget()
    giver.a += 1.0
    giver.source.receive(StateRequest(2), B, giver.model, 1.0)
    for job, result in early[1:]:
        giver.source.frozen(job, result, giver.model)
    taker = Taker()
    giver.work()
    giver.outputs.messages.clear()
    taker.joiner.seek([A], 1.0)
    carry(taker, {A: giver}, 1.0)
    assert taker.joiner.done and close_to(taker.algorithm.ledger.a, giver.a).all()


def test_source_drops_a_snapshot_without_requests_and_says_gone():
    giver = Giver(A)
    giver.source.receive(StateRequest(1), B, giver.model, 0.0)
    giver.work()
    snapshot = giver.outputs.messages.pop().message.snapshot
    giver.source.receive(StateAsk(1, snapshot, (0, 99)), B, giver.model, 50.0)
    assert [envelope.message.chunk for envelope in giver.outputs.messages] == [0]
    giver.outputs.messages.clear()
    assert giver.source.timer() == 110.0
    giver.source.handle_timer(110.0)
    giver.source.receive(StateAsk(1, snapshot, (0,)), B, giver.model, 111.0)
    assert giver.outputs.messages[0].message == StateRefuse(1, "gone")


def test_frozen_state_does_not_follow_the_anchor():
    giver, taker = Giver(A), Taker()
    before = giver.a.copy()
    taker.joiner.seek([A], 0.0)
    carry(taker, {A: giver}, mangle=lambda envelope: None if isinstance(envelope.message, StateChunk) else envelope)
    giver.a += 1.0
    taker.joiner.handle_timer(2.0)
    carry(taker, {A: giver}, 2.0)
    assert taker.joiner.done and close_to(taker.algorithm.ledger.a, before).all()
