"""`epidemic` in whole networks of peers with training processes: all end with the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import (
    EpochDiverged,
    EpochFingerprinted,
    EpochSettled,
    IncrementApplied,
    IncrementPublished,
    ResyncEnded,
    RoundDone,
    RoundSettled,
    SnapshotTaken,
    UpdateRefused,
)
from gossipdp.protocol.membership.progress import LARGEST
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Ping, Progress
from simulations.simulator.host import sign, verify
from tests.simulations.simulator.epidemic_network import SPAN, STEP, Epidemics, config


def test_all_apply_what_each_publishes_and_are_the_same_bits():
    net = Epidemics(1, 4)
    net.form()
    net.run(10.0)
    net.finish(4.0)
    net.agree()
    assert not net.of(ResyncEnded) and not net.of(EpochDiverged)
    lone = len(net.of(RoundDone)) - len(net.of(IncrementPublished))
    assert lone <= 1 and len(net.of(IncrementPublished)) > 40
    inside = [host.peer.strategy._broadcast.counts["payload"] for host in net.up]
    assert min(inside) > 0


def test_increments_of_a_peer_set_aside_arrive_through_others():
    net = Epidemics(28, 3)
    net.form()
    net.run(2.0)
    first, bad = net.network.hosts[0], net.network.hosts[2]
    net.books.expect_faults_of(bad.id)
    for _ in range(3):
        first.peer._outputs.emit(UpdateRefused(bad.id, "hash"))
        net.run(2.0)
    assert first.peer.strikes.aside(net.network.now) == [bad.id]
    since = net.network.now
    net.run(5.0)
    assert first.peer.strategy._broadcast.counts["shunned"]
    assert bad.id not in {link.peer for link in first.peer.strategy._broadcast._links}
    assert {event.origin for event in net.of(IncrementApplied, 0, since)} == {host.id for host in net.up[1:]}
    net.finish(4.0)
    net.agree()


def test_clock_that_no_epoch_has_a_number_for_stops_no_peer():
    net = Epidemics(26, 3)
    net.form()
    net.run(2.0)
    source = net.network.hosts[2]
    frames = wire.encode(
        Ping(1, progress=(Progress(b"x" * 32, 1 << 50, 0, 0, 0), Progress(source.id, 1 << 50, 0, 0, 0)))
    )
    for host in net.up[:2]:
        host.peer.receive(frames, source.id, net.network.now)
    net.run(30.0)
    since = net.network.now - 3.0
    assert all(net.of(IncrementPublished, host.index, since) for host in net.up)
    assert len(net.of(EpochSettled, since=since)) >= 3
    net.finish(4.0)
    net.agree()


def test_at_the_end_of_the_clock_no_epoch_begins_and_no_peer_stops():
    net = Epidemics(27, 3, span=1, every=8)
    net.form(2)
    net.run(2.0)
    teller = net.up[1].id
    report = Signer(partial(sign, teller), verify).sign_progress(Progress(teller, LARGEST, 1000, 1000, 1000))
    net.up[0].peer.receive(wire.encode(Ping(1, progress=(report,))), teller, net.network.now)
    net.run(1.0)
    net.start(2)
    net.until_ready()
    net.run(10.0)
    assert {host.peer.replica.clock for host in net.up} == {LARGEST}
    assert all(host.peer.rounds.rounds > 0 for host in net.up)


def test_shares_sum_to_about_one():
    net = Epidemics(2, 4)
    net.form()
    net.run(30.0)
    told = net.of(IncrementPublished, since=10.0)
    rounds = (net.network.now - 10.0) / (SPAN * STEP)
    assert sum(event.weight for event in told) / rounds == pytest.approx(1.0, abs=0.25)


def test_replicas_end_where_training_leads_them():
    net = Epidemics(3, 3)
    net.form()
    net.run(40.0)
    for host in net.up:
        distance = np.abs(host.algorithm.ledger.a - net.trainers[host.index].optimum)
        assert np.median(distance) < 0.25


def test_uncompressed_increments_of_the_warm_start_move_by_their_full_size():
    """alpha compensates what top-k leaves out. Twice a whole step would overshoot."""
    net = Epidemics(25, 2, warmup_steps=60)
    terms = set()
    execute = net._execute

    def watch(host, job):
        if isinstance(job, jobs.Publish | jobs.Apply | jobs.CheckIncrement):
            terms.add((type(job).__name__, job.compressor, job.lr))
        return execute(host, job)

    net.network._execute = watch
    net.form()
    net.run(6.0)
    kinds = ("Publish", "Apply", "CheckIncrement")
    assert terms == {(kind, *how) for kind in kinds for how in (("whole", 1.0), ("topk256", 2.0))}


@pytest.mark.parametrize("compressor", ["threshold3", "lowrank4"])
def test_replicas_agree_to_the_bit_under_a_compressor_of_varying_or_folded_payloads(compressor):
    """`threshold3` payloads vary in size; `lowrank4` folds each chunk into a matrix."""
    net = Epidemics(12, 3, strategy=replace(config().strategy, compressor=compressor, whole_until=0))
    net.form()
    net.run(20.0)
    told = net.of(IncrementApplied)
    assert {event.compressor for event in told} == {compressor} and len(told) > 100
    net.finish(4.0)
    net.agree()
    assert not net.of(EpochDiverged) and not net.of(UpdateRefused) and not net.of(ResyncEnded)


def test_lone_peer_publishes_nothing_and_has_its_training_process_s_model():
    net = Epidemics(4, 1, every=4)
    net.form()
    host, trainer = net.up[0], net.trainers[0]
    alone = trainer.x.copy()
    sealed = []
    for _ in range(40):
        net.run(0.1)
        sealed.append(host.algorithm.ledger.outstanding(0, trainer.applied).any())
    assert net.of(RoundDone) and not net.of(IncrementPublished)
    assert not any(sealed) and (trainer.x != alone).any()
    assert (host.algorithm.ledger.a == trainer.region.buffers[0]).all()


def test_joiner_takes_over_a_state_during_training_and_has_the_same_bits():
    net = Epidemics(5, 3, chunks=3)
    net.form(2)
    net.run(5.0)
    net.start(2)
    net.until_ready()
    net.run(5.0)
    net.finish(4.0)
    net.agree()
    assert not net.of(ResyncEnded) and not net.of(EpochDiverged)
    assert net.of(IncrementPublished, 2) and net.of(IncrementApplied, 2)


def test_state_is_frozen_between_increments_and_not_within_one():
    """Between the Freeze jobs of one snapshot no job moves a chunk."""
    net = Epidemics(6, 3, chunks=4)
    seen = {}
    execute = net._execute

    def watch(host, job):
        seen.setdefault(host.index, []).append(job)
        return execute(host, job)

    net.network._execute = watch
    net.form(2)
    net.run(3.0)
    net.start(2)
    net.until_ready()
    frozen = 0
    for done in seen.values():
        inside = None
        for job in done:
            match job:
                case jobs.Freeze(chunk):
                    assert inside in (None, "freeze")
                    inside = "freeze" if chunk < 3 else None
                    frozen += chunk == 3
                case jobs.Publish(chunk) | jobs.OuterStep(chunk):
                    assert inside in (None, "round")
                    inside = "round" if chunk < 3 else None
                case jobs.Apply(chunk):
                    assert inside in (None, "increment")
                    inside = "increment" if chunk < 3 else None
    assert frozen >= 2


def fingerprints(net, since=0.0):
    """Epoch -> host -> its fingerprint."""
    found = {}
    for index in net.events:
        for event in net.of(EpochFingerprinted, index, since=since):
            found.setdefault(event.epoch, {})[index] = event.fingerprint
    return found


def test_replicas_were_equal_at_the_end_of_each_epoch_during_training():
    net = Epidemics(22, 4, chunks=3)
    net.form(3)
    net.run(4.0)
    net.start(3)
    net.until_ready()
    net.run(12.0)
    found = fingerprints(net)
    assert all(len(set(told.values())) == 1 for told in found.values()), found
    assert sum(len(told) == 4 for told in found.values()) >= 5
    assert len({value for told in found.values() for value in told.values()}) == len(found), "they moved in each"


def test_one_unit_in_one_parameter_changes_all_later_fingerprints():
    net = Epidemics(23, 3)
    net.form()
    net.run(6.0)
    net.network.hosts[1].algorithm.ledger.fixed[4321] += 1
    at = net.network.now
    net.run(8.0)
    since = [told for told in fingerprints(net, at).values() if len(told) == 3]
    assert len(since) >= 5
    for told in since:
        assert told[0] == told[2] != told[1]


# -- training that waits ---------------------------------------------------------------------------------------


def test_in_mode_sync_a_round_settles_with_all_increments_and_a_stopped_peer_delays_one():
    net = Epidemics(24, 3, sync=True, warmup_steps=0)
    settled = []

    def watch(host, event, heard=net._heard):
        heard(host, event)
        if host.index == 0 and isinstance(event, RoundSettled):
            newest, since = host.peer.strategy._newest, host.peer.strategy._rounds.since
            settled.append({other.index for other in net.up if newest.get(other.id, -1) > since})

    net.network._listen = watch
    net.form()
    net.run(5.0)
    settled.clear()
    at = net.network.now
    net.run(10.0)
    rounds = len(net.of(SnapshotTaken, 0, since=at))
    # Training does not wait here. A round that the next one overtakes is not reported.
    assert rounds >= 10 and len(settled) >= rounds / 2
    assert settled == [{1, 2}] * len(settled)
    net.trainers[2].die()
    settled.clear()
    at = net.network.now
    net.run(10.0)
    rounds = len(net.of(SnapshotTaken, 0, since=at))
    alone = settled.count({1})
    assert rounds >= 10 and len(settled) >= rounds / 2 - 2 and alone >= len(settled) - 2


# -- a host whose training diverges ------------------------------------------------------------------------------------


def test_diverging_host_moves_no_peer_much_and_all_clip_it_equally():
    net = Epidemics(31, 4)
    for _ in range(2):
        net.network.add(config())
    net.form(4)
    net.run(30 * SPAN * STEP)
    before = [host.algorithm.ledger.a.copy() for host in net.up]
    at = net.network.now
    net.trainers[3]._noise *= np.float32(1000.0)
    net.run(4 * SPAN * STEP)
    net.start(4)
    net.run(4 * SPAN * STEP)
    net.crash(1)
    net.start(5)
    net.run(2 * SPAN * STEP)
    net.start(1)
    net.until_ready()
    applied = {host.index: net.of(IncrementApplied, host.index, at) for host in net.up}
    cut = [{event.origin for event in events if event.scale < 1.0} for events in applied.values()]
    bad = net.network.hosts[3].id
    assert all(origins <= {bad} for origins in cut) and cut.count({bad}) == 5, "it is cut by all but itself"
    net.finish()
    net.agree()
    far = [float(np.sqrt(np.mean((host.algorithm.ledger.a - a) ** 2))) for host, a in zip(net.up, before, strict=False)]
    assert max(far[:3]) < 1.5, "without a bound it is 15"


def test_round_is_clipped_at_the_clock_of_its_own_last_step():
    net = Epidemics(32, 2)
    net.form(1)
    net.start(1)
    net.until_ready()
    net.trainers[0].die()
    strategy, told = net.network.hosts[1].peer.strategy, []
    of = strategy._shares.of
    strategy._shares.of = lambda *of_what: (
        told.append(strategy._standing.clock - strategy._rounds.last_at) or of(*of_what)
    )
    net.run(10 * SPAN * STEP)
    assert len(told) > 5 and min(told) > 0, "steps of the network's clock since the one before"
