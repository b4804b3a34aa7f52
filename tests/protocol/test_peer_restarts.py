"""A peer comes back: it takes the network's model, or resumes from its checkpoint."""

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ExchangeEnded, Notice, RoundDone, StateReady
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.manifest import signed_part as signed
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Has, Member, PushPull, Standing, State, StateManifest, StateRequest
from tests.protocol.peer_rig import SCHEMA, a_peer, founded, take


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
    assert not town.peer(0).view.ready
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
    assert not peer.view.ready and peer.timer() is not None


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
