"""Peers whole, in virtual time on a calm network: found, join, attach, restart, leave (architecture section 4)."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from gossipdp.protocol.events import (
    ExchangeEnded,
    Left,
    MessageDropped,
    Notice,
    Pace,
    RoundDone,
    RoundSettled,
    SessionOpened,
    SessionRefused,
    SlotSealed,
    SnapshotTaken,
    StateReady,
    TransferProgress,
)
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.matching import BUSY, IDLE
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.schema import Frozen, Schema
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.manifest import signed_part as signed
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    Has,
    Member,
    Offer,
    Ping,
    Pong,
    PushPull,
    Standing,
    State,
    StateChunk,
    StateManifest,
    StateRequest,
)
from simulations.simulator.network import Conditions, Network
from simulations.simulator.trainer import Trainer, TrainerConfig

SCHEMA = Schema.of([("w", (8192 + 200,), "float32", "parameter")])
OTHER = Schema.of([("w", (8192 + 100,), "float32", "parameter")])


def configured(**changes):
    options = {
        "membership": LOCAL,
        "strategy": PairwiseConfig(fineness={name: codec.fineness for name, codec in CODECS.items()}),
        "settings": b"the settings....",
        "transfer": TransferConfig(manifest=2.0, chunk=1.0, silence=3.0),
        "every": 5,
        "warmup_steps": 20,
        "resume_after": 5.0,
        "leave_within": 2.0,
    }
    return PeerConfig(**{**options, **changes})


class Town:
    """A network whose peers' events are kept by host."""

    def __init__(self, peers=2, **changes):
        self.events = defaultdict(list)
        self.trainers = {}
        self.net = Network(1, Conditions(latency=0.005), listen=self.heard)
        self.hosts = [self.net.add(configured(**changes)) for _ in range(peers)]

    def heard(self, host, event):
        self.events[host.index].append(event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)

    def start(self, index, *, found=False):
        self.net.start(self.hosts[index], seeds=self.hosts[:1], found=found)

    def train(self, index, schema=SCHEMA, **config):
        number = 10 * index + len(self.events[index])
        trainer = Trainer(self.net, self.hosts[index], schema, TrainerConfig(**config), number, lambda *what: None)
        self.trainers[index] = trainer
        return trainer

    def run(self, seconds):
        self.net.run(self.net.now + seconds)

    def of(self, index, kind):
        return [event for event in self.events[index] if isinstance(event, kind)]

    def peer(self, index):
        return self.hosts[index].peer


def founded(peers=2, **changes):
    """Peer 0 has founded and trains."""
    town = Town(peers, **changes)
    town.start(0, found=True)
    town.train(0)
    town.run(0.5)
    return town


def test_founder_without_a_training_process_has_no_model():
    town = Town()
    town.start(0, found=True)
    town.run(2.0)
    assert not town.peer(0).replica.ready and not town.of(0, StateReady)


def test_found_takes_the_model_of_the_first_training_process():
    town = Town()
    town.start(0, found=True)
    trainer = town.train(0)
    start = trainer.x.copy()
    town.run(0.1)
    assert [event.origin for event in town.of(0, StateReady)] == ["founded"]
    assert (town.hosts[0].algorithm.ledger.a == start).all() and (trainer.x == start).all()
    assert trainer.session == 1 and town.peer(0).replica.ready


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
    assert clock > 90 and town.peer(1).replica.clock >= clock and not town.peer(1).pacing.warming_up


def test_two_peers_exchange_and_agree():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(30.0)
    for index in (0, 1):
        done = [event for event in town.of(index, ExchangeEnded) if event.result == "done"]
        assert len(done) > 10 and not town.of(index, MessageDropped)
        assert (0.7, 0.7) in {(event.lr, event.momentum) for event in town.of(index, RoundDone)}
    first = town.of(1, ExchangeEnded)[0]
    assert first.codec == "modulo16"
    assert town.of(1, ExchangeEnded)[-1].codec == "modulo4"
    a, b = (host.algorithm.ledger.a for host in town.hosts)
    assert np.abs(a - b).max() < 0.3


def test_each_says_in_pings_and_their_answers_how_fast_it_trains_and_not_in_other_gossip():
    said = []
    town = founded()
    town.net.tampers = lambda host, envelope: said.append((host.index, envelope.message)) or (envelope,)
    town.start(1)
    town.train(1)
    town.run(20.0)
    town.trainers[1].die()
    town.run(40.0)
    for index in (0, 1):
        messages = [message for host, message in said if host == index and isinstance(message, Ping | Pong)]
        speeds = [message.speed for message in messages if message.speed is not None]
        assert {type(message) for message in messages if message.speed} == {Ping, Pong}
        assert speeds[0] == 0.0 and max(speeds) == pytest.approx(5.0, rel=0.1), "a step takes 0.2 s"
        assert (speeds[-1] > 0.0) == (index == 0), "whose training process is gone trains no more"
        gossip = [message.speed for message in messages if message.sequence == 0]
        assert gossip and set(gossip) == {None}


OTHER_MEMBER = Member(b"q" * 32, "q", "10.0.0.2:1", 1, 0, State.ALIVE)


def hears(peer, message, *, of=OTHER_MEMBER, at=1.0):
    """H's factor after two rounds of 10 steps a second that follow on this message."""
    peer.receive(wire.encode(message), of.id, at)
    for seconds in (0.5, 1.0):
        peer._speed.trained(0.1, at + seconds)
    return peer.pacing.speed


@pytest.mark.parametrize("said", [Ping, Pong])
def test_h_is_by_what_members_say_of_themselves(said):
    peer = a_peer()
    assert hears(peer, said(7, (OTHER_MEMBER,))) == 1.0, "it says nothing of it"
    assert hears(peer, said(8, (OTHER_MEMBER,), speed=40.0), at=2.0) == pytest.approx(10 / 25)
    assert hears(peer, said(9, (OTHER_MEMBER,)), at=3.0) == pytest.approx(10 / 25)
    assert hears(peer, said(10, (OTHER_MEMBER,), speed=math.inf), at=4.0) == pytest.approx(10 / 25), "as if it paused"


def test_h_is_by_all_members():
    """Of 32 of these most would be slow."""
    peer = a_peer()
    for number in range(45):
        member = replace(OTHER_MEMBER, id=(number + 1).to_bytes(32, "big"), address=f"10.0.0.{number + 3}:1")
        factor = hears(peer, Ping(1, (member,), speed=10.0 if number < 25 else 1.0), of=member, at=float(2 * number))
    assert factor == 1.0


def test_h_is_not_by_who_has_left_though_a_word_of_it_comes_late():
    peer = a_peer()
    assert hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0)) == pytest.approx(10 / 25)
    assert hears(peer, Pong(8, (replace(OTHER_MEMBER, state=State.LEFT),), speed=40.0), at=3.0) == 1.0
    assert hears(peer, Pong(9, (), speed=40.0), at=5.0) == 1.0


def test_h_is_not_by_who_is_set_aside_nor_by_who_is_no_member():
    peer = a_peer()
    assert hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0)) == pytest.approx(10 / 25)
    peer.strikes.shuns = lambda peer, now: True
    assert hears(peer, Pong(8, (OTHER_MEMBER,)), at=3.0) == 1.0
    assert hears(a_peer(), Ping(7, (), speed=40.0)) == 1.0


def goes_on(peer, begin, end):
    """A round every ten seconds from `begin` on: H's factors after them."""
    factors = []
    for at in range(begin, end + 1, 10):
        peer._speed.trained(0.1, float(at))
        factors.append(peer.pacing.speed)
    return factors


COUNTED, ALONE = pytest.approx(10 / 25), 1.0


def test_who_has_failed_counts_for_the_last_rounds_and_then_no_more():
    """A cut that is soon over lets nobody make a long round."""
    peer = a_peer()
    hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0))
    assert goes_on(peer, 10, 100)[-1] == COUNTED
    peer.receive(wire.encode(Pong(8, (replace(OTHER_MEMBER, state=State.FAILED),))), b"r" * 32, 105.0)
    assert peer.membership.members[OTHER_MEMBER.id].state == State.FAILED
    assert goes_on(peer, 110, 190) == [COUNTED] * 7 + [ALONE] * 2


def test_who_rests_counts_until_it_was_seen_to_rest_for_as_long_as_the_last_rounds():
    """One word of a pause, and none that it is over yet, is no long one."""
    peer = a_peer()
    hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0))
    goes_on(peer, 10, 100)
    rest = wire.encode(Ping(1, (OTHER_MEMBER,), speed=0.0))
    peer.receive(rest, OTHER_MEMBER.id, 105.0)
    assert goes_on(peer, 110, 300) == [COUNTED] * 20
    peer.receive(rest, OTHER_MEMBER.id, 301.0)
    assert goes_on(peer, 310, 310) == [ALONE]
    assert hears(peer, Pong(8, (OTHER_MEMBER,), speed=40.0), at=320.0) == COUNTED


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
    assert trainer.refused == "GD-301" and town.peer(1).replica.ready


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
    assert not town.peer(1).replica.ready and "GD-303" in {event.code for event in town.of(1, Notice)}


def test_restart_with_others_there_takes_their_state_not_the_checkpoint():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(10.0)
    town.hosts[1].save()
    town.run(5.0)
    town.trainers[1].die()
    town.net.stop(town.hosts[1])
    town.run(1.0)
    town.events[1].clear()
    town.start(1)
    town.run(3.0)
    assert [event.origin for event in town.of(1, StateReady)] == ["received"]


def test_restart_with_nobody_there_resumes_from_the_checkpoint_after_a_while():
    town = founded()
    town.run(10.0)
    town.hosts[0].save()
    saved = town.hosts[0].checkpoint
    town.trainers[0].die()
    town.net.stop(town.hosts[0])
    town.events[0].clear()
    town.start(0)
    trainer = town.train(0)
    town.run(4.9)
    assert not town.peer(0).replica.ready
    town.run(1.0)
    [ready] = town.of(0, StateReady)
    assert (ready.origin, ready.clock) == ("restored", saved.clock)
    assert (town.hosts[0].algorithm.ledger.a == saved.a).all() or town.of(0, RoundDone)
    assert trainer.session == 1
    town.run(3.0)
    assert town.of(0, RoundDone)[0].round == saved.rounds + 1


def test_restart_of_all_resumes_from_the_latest_checkpoint_and_the_others_fetch_it():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(10.0)
    for host in town.hosts:
        host.save()
        town.trainers[host.index].die()
        town.net.stop(host)
        town.events[host.index].clear()
    for index in (0, 1):
        town.start(index)
        town.train(index)
    town.run(20.0)
    saved = [(host.checkpoint.clock, host.checkpoint.rounds, -host.index) for host in town.hosts]
    latest = saved.index(max(saved))
    for index in (0, 1):
        origin = "restored" if index == latest else "received"
        assert [event.origin for event in town.of(index, StateReady)] == [origin]
        assert [event for event in town.of(index, ExchangeEnded) if event.result == "done"]


def test_no_checkpoint_and_nobody_there_is_told_and_the_search_goes_on():
    peer = a_peer()
    peer.join(["10.9.9.9:1"], 0.0, resume=Held(50, 5))
    peer.handle_timer(5.0)
    assert [type(job) for job in take(peer.next_job)] == [jobs.Restore]
    peer.job_done(jobs.Restore(), None, 5.1)
    assert "GD-101" in {event.code for event in take(peer.next_event) if isinstance(event, Notice)}
    assert not peer.replica.ready and peer.timer() is not None


def test_manifest_that_comes_while_the_checkpoint_is_read_makes_no_room_for_another_model():
    """Making room would throw away what the checkpoint has just brought."""
    peer, source = a_peer(), Member(b"q" * 32, "q", "10.0.0.2:1", 1, 0, State.ALIVE)
    peer.join(["10.0.0.2:1"], 0.0, resume=Held(50, 5))
    peer.receive(wire.encode(PushPull(False, (source,))), source.id, 1.0)
    peer.receive(wire.encode(Standing(1, Has.MODEL, 60, 6, False)), source.id, 1.0)
    [request] = [said.message for said in peer.messages_to_send() if isinstance(said.message, StateRequest)]
    now = 1.0
    while not (asked := take(peer.next_job)):
        now = peer.timer()
        peer.handle_timer(now)
    assert asked == [jobs.Restore()]
    settings = peer.config.settings
    manifest = StateManifest(request.transfer, 1, SCHEMA.size, 8192, 9, 1, SCHEMA.digest, settings)
    buffers = [SCHEMA.to_bytes(), b"h" * 32, signed(manifest, SCHEMA.to_bytes(), b"h" * 32)]
    peer.receive(wire.encode(manifest, buffers), source.id, now)
    assert take(peer.next_job) == []
    peer.job_done(jobs.Restore(), jobs.Restored(SCHEMA.to_bytes(), 50, 5), now)
    assert [event.origin for event in take(peer.next_event) if isinstance(event, StateReady)] == ["restored"]
    assert not any(isinstance(job, jobs.Allocate) for job in take(peer.next_job))


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
    assert town.peer(1).replica.ready and not town.of(1, SessionOpened)
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
    town.net.command(town.hosts[0], "submit", lambda peer: peer.training.submit(7, 1, 0, 5, 5, town.net.now))
    assert town.of(0, SnapshotTaken)[-1] == SnapshotTaken(1, "session")
    assert town.peer(0).replica.clock == 0


def test_leave_says_goodbye_and_the_others_know():
    town = founded()
    town.start(1)
    town.train(1)
    town.run(10.0)
    town.net.command(town.hosts[1], "leave", lambda peer: peer.leave(town.net.now))
    town.run(2.5)
    assert town.of(1, Left)
    assert town.peer(0).membership.members[town.hosts[1].id].state == State.LEFT


def test_pace_is_short_while_warming_up_and_then_as_configured():
    town = founded(every=12)
    town.run(15.0)
    assert [event.every for event in town.of(0, Pace)] == [5, 12]


def take(method):
    taken = []
    while (item := method()) is not None:
        taken.append(item)
    return taken


def a_peer(seed=1):
    me = Member(b"p" * 32, "p", "10.0.0.1:1", 1, 0, State.ALIVE)
    return Peer(
        configured(), me, random=Random(seed), sign=lambda data: data, verify=lambda peer, data, sign: True, now=0.0
    )


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
    assert not peer.replica.ready and b"q" * 32 not in peer.membership.members


def test_same_seed_and_inputs_say_the_same_bytes():
    def transcript():
        peer, said = a_peer(), []
        peer.join(["10.0.0.2:1"], 0.0)
        while (due := peer.timer()) is not None and due < 60.0:
            peer.handle_timer(due)
            said += [(due, envelope.address, bytes(envelope.frames[0])) for envelope in peer.messages_to_send()]
        return said

    assert transcript() == transcript() and len(transcript()) > 5


# -- words that are repeated to a later life -----------------------------------------------------------------------


def test_chunk_of_a_state_that_was_not_asked_for_says_nothing_of_whose_model_it_is():
    town = founded(3)
    town.start(1)
    town.run(6.0)
    town.start(2)
    joiner, stranger = town.peer(2), town.hosts[1].id
    while not joiner.replica.ready:
        town.run(0.0005)
        if joiner.replica.model is None:
            joiner.receive(wire.encode(StateChunk(777, 1 << 32, 0, 0), [bytes(100)]), stranger, town.net.now)
            town.net.drain(town.hosts[2])
    assert {event.source for event in town.of(2, TransferProgress)} == {joiner.replica._holder.giver}


def test_offer_of_somebody_unknown_keeps_no_joiner_waiting():
    town = Town(2)
    town.net.start(town.hosts[1], seeds=town.hosts[:1])
    offer = Offer(1 << 32 | 4, bytes(16), bytes(16), "modulo8", 0.5, 0.0, 0, 2)
    town.peer(1).receive(wire.encode(offer), b"d" * 32, 0.0)
    town.net.drain(town.hosts[1])
    assert town.peer(1).replica._transfers.bootstrap._joiner.source is None


def test_a_new_training_process_is_not_told_of_a_round_of_its_predecessor():
    town = founded(2, sync=True)
    town.start(1)
    town.train(1)
    town.run(10.0)
    peer, until = town.peer(1), town.net.now + 20.0
    while not (peer.training._unsettled and peer.strategy.partner) and town.net.now < until:
        town.run(0.001)
    assert peer.training._unsettled and peer.strategy.partner
    town.trainers[1].die()
    town.run(2.0)
    town.events[1].clear()
    town.train(1)
    town.run(3.0)
    told = [event for event in town.events[1] if isinstance(event, RoundSettled | SnapshotTaken)]
    assert isinstance(told[0], SnapshotTaken) and any(isinstance(event, RoundSettled) for event in told)


@pytest.mark.parametrize(("sync", "until"), [(True, BUSY), (False, IDLE)])
def test_process_that_has_not_made_a_round__is_waited_for_in_mode_sync_alone(sync, until):
    town = founded(2, sync=sync)
    town.start(1)
    town.run(3.0)
    assert town.peer(1).strategy._averaging._offers.rests() == IDLE
    town.train(1)
    end = town.net.now + 20.0
    while not town.peer(1).rounds.open and town.net.now < end:
        town.run(0.001)
    assert town.peer(1).strategy._averaging._offers.rests() == until
    town.run(10.0)
    assert town.peer(1).strategy._averaging._offers.rests() == ""
