"""Peers whole, in virtual time on a calm network: found, join, exchange, leave, and messages that no peer sends."""

import dataclasses
from random import Random

import numpy as np
import pytest

from gossipdp.protocol.events import (
    ExchangeEnded,
    Left,
    MessageDropped,
    Pace,
    RoundDone,
    SlotSealed,
    StateReady,
    TransferProgress,
)
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Offer, State, StateChunk
from tests.protocol.peer_rig import Town, a_peer, founded, take


def test_founder_without_a_training_process_has_no_model():
    town = Town()
    town.start(0, found=True)
    town.run(2.0)
    assert not town.peer(0).view.ready and not town.of(0, StateReady)


def test_found_takes_the_model_of_the_first_training_process():
    town = Town()
    town.start(0, found=True)
    trainer = town.train(0)
    start = trainer.x.copy()
    town.run(0.1)
    assert [event.origin for event in town.of(0, StateReady)] == ["founded"]
    assert (town.hosts[0].algorithm.ledger.a == start).all() and (trainer.x == start).all()
    assert trainer.session == 1 and town.peer(0).view.ready


def test_lone_peer_takes_rounds_that_leave_x_alone_and_never_offers():
    town = founded()
    trainer = town.trainers[0]
    town.run(20.0)
    assert len(town.of(0, RoundDone)) > 10
    assert {(event.lr, event.momentum) for event in town.of(0, RoundDone)} == {(1.0, 0.0)}
    assert not town.of(0, SlotSealed) and not town.of(0, ExchangeEnded)
    assert trainer.steps > 90


def test_joiner_receives_the_model_before_its_training_process_may_step():
    town = founded()
    town.start(1)
    trainer = town.train(1)
    own_start = trainer.x.copy()
    while not town.of(1, StateReady):
        assert not trainer.session and trainer.steps == 0
        town.run(0.05)
        assert town.net.now < 10.0
    town.run(0.1)
    assert [event.origin for event in town.of(1, StateReady)] == ["received"]
    assert trainer.session == 1
    np.testing.assert_allclose(trainer.x, town.hosts[0].algorithm.ledger.a, atol=0.5)
    assert np.abs(trainer.x - own_start).max() > 1.0


def test_joiner_takes_over_the_networks_clock():
    town = founded()
    town.run(20.0)
    town.start(1)
    town.run(3.0)
    clock = town.of(1, StateReady)[0].clock
    assert clock > 90 and town.peer(1).view.clock >= clock and not town.peer(1).view.warming_up


def test_correction_of_a_round_lands_with_the_exchange_that_its_peer_begins():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(30.0)
    before = [sum(len(town.of(index, kind)) for index in (0, 1)) for kind in (SlotSealed, RoundDone)]
    town.run(30.0)
    after = [sum(len(town.of(index, kind)) for index in (0, 1)) for kind in (SlotSealed, RoundDone)]
    sealed, rounds = (end - begin for begin, end in zip(before, after, strict=True))
    # One exchange a round of each: whoever begins it waits, and the other has nothing to wait for.
    assert sealed == pytest.approx(1.5 * rounds, rel=0.05)


def test_two_peers_exchange_and_agree():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(30.0)
    for index in (0, 1):
        done = [event for event in town.of(index, ExchangeEnded) if event.result == "done"]
        assert len(done) > 10 and not town.of(index, MessageDropped)
        steps = [(event.lr, event.momentum) for event in town.of(index, RoundDone)]
        assert any(0.7 <= lr < 1.0 and 0.4 < momentum < 0.5 for lr, momentum in steps), "that of two"
    first = town.of(1, ExchangeEnded)[0]
    assert first.codec == "modulo16"
    assert town.of(1, ExchangeEnded)[-1].codec == "modulo3"
    a, b = (host.algorithm.ledger.a for host in town.hosts)
    assert np.abs(a - b).max() < 0.3


def test_leave_says_goodbye_and_the_others_know():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(10.0)
    town.net.command(town.hosts[1], "leave", lambda peer: peer.leave(town.net.now))
    town.run(2.5)
    assert town.of(1, Left)
    assert town.peer(0).view.members[town.hosts[1].id].state == State.LEFT


def test_pace_is_short_while_warming_up_and_then_as_configured():
    town = founded(every=12)
    town.run(15.0)
    assert [event.every for event in town.of(0, Pace)] == [2, 12]


def test_exchanges_longer_than_rounds_of_the_warm_start_end__and_rounds_become_as_long():
    town = Town(warmup_steps=400, every=100)
    town.net.set_conditions(dataclasses.replace(town.net.conditions, latency=0.15))
    for index in (0, 1):
        town.start(index, found=index == 0)
        town.train(index, step_time=0.05)
        town.run(3.0)
    town.run(9.0)
    for index in (0, 1):
        done = [event for event in town.of(index, ExchangeEnded) if event.result == "done"]
        assert len(done) > 3 and town.of(index, Pace)[-1].every > 10, "an exchange lasts for about 20 steps"


@pytest.mark.parametrize("frames", [[b""], [b"\x93\x01\x63\x01"], [b"garbage"], [b"x" * 5000], [b"\x90"] * 65])
def test_garbage_is_an_event_and_never_an_exception(frames):
    peer = a_peer()
    peer.receive(frames, b"q" * 32, 1.0)
    assert [type(event) for event in take(peer.next_event)] == [MessageDropped]


def test_random_frames_change_nothing_and_never_raise():
    peer, random = a_peer(), Random(5)
    peer.join([], 0.0)
    for _ in range(3000):
        frames = [random.randbytes(random.choice((1, 5, 20, 60))) for _ in range(random.randint(1, 4))]
        frames[0] = bytes([0x90 + random.randint(2, 9), 1, random.randint(1, 21)]) + frames[0]
        peer.receive(frames, b"q" * 32, 1.0)
    assert not peer.view.ready and b"q" * 32 not in peer.view.members


def test_same_seed_and_inputs_say_the_same_bytes():
    def transcript():
        peer, said = a_peer(), []
        peer.join(["10.0.0.2:1"], 0.0)
        while (due := peer.timer()) is not None and due < 60.0:
            peer.handle_timer(due)
            said += [(due, envelope.address, bytes(envelope.frames[0])) for envelope in peer.messages_to_send()]
        return said

    assert transcript() == transcript() and len(transcript()) > 5


def test_chunk_of_a_state_that_was_not_asked_for_says_nothing_of_whose_model_it_is():
    town = founded(3)
    town.start(1)
    town.run(6.0)
    town.start(2)
    joiner, stranger = town.peer(2), town.hosts[1].id
    while not joiner.view.ready:
        town.run(0.0005)
        if joiner.view.model is None:
            joiner.receive(wire.encode(StateChunk(777, 1 << 32, 0, 0), [bytes(100)]), stranger, town.net.now)
            town.net.drain(town.hosts[2])
    assert {event.source for event in town.of(2, TransferProgress)} == {joiner._replica.giver}


def test_offer_of_somebody_unknown_keeps_no_joiner_waiting():
    town = Town(2)
    town.net.start(town.hosts[1], seeds=town.hosts[:1])
    offer = Offer(1 << 32 | 4, bytes(16), bytes(16), "modulo8", 0.5, 0.0, 0, 2)
    town.peer(1).receive(wire.encode(offer), b"d" * 32, 0.0)
    town.net.drain(town.hosts[1])
    assert town.peer(1)._replica._joiner.source is None


@pytest.mark.parametrize("asked", [1, 2])
def test_timer_asked_any_number_of_times__changes_nothing_that_follows(asked):
    def transcript(times):
        peer, said, slept = a_peer(), [], []
        peer.join(["10.0.0.2:1"], 0.0)
        peer._membership.slept = slept.append
        for now in (0.5, 1.0, 1.5, 60.0, 60.5, 61.0):
            for _ in range(times):
                peer.timer()
            peer.handle_timer(now)
            said += [(now, envelope.address, bytes(envelope.frames[0])) for envelope in peer.messages_to_send()]
        return said, slept

    said, slept = transcript(0)
    assert transcript(asked) == (said, slept) and slept, "the host was suspended for a minute"
