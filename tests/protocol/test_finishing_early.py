"""Peers whose training ends before that of others: they hand their last steps in, wait as spares, and end as one."""

import dataclasses
import math

import numpy as np
import pytest

from gossipdp.protocol.events import ExchangeEnded, FinishBegan, Finished, FinishPhase, ResyncEnded
from gossipdp.protocol.wire.messages import Phase, State
from simulations.simulator.settings import averaging_config
from tests.protocol.finish_rig import Ending, distance
from tests.protocol.peer_rig import configured

SIZES = [2, 3, 5, 8, pytest.param(16, marks=pytest.mark.long)]
PUSH = 0.05
"""last movement of the first peer, in each parameter"""


def finishing(town, index):
    return town.peer(index)._replica.ending


def waiting(town, index):
    """Run until this peer waits for the others; at most 60 seconds."""
    until = town.net.now + 60.0
    while town.net.now < until and town.peer(index).view.me.phase is not Phase.WAITING:
        town.run(0.05)
    assert town.peer(index).view.me.phase is Phase.WAITING


def lose(town, index):
    town.net.stop(town.hosts[index])
    if index in town.trainers:
        town.trainers[index].alive = False


def pushed(peers):
    """Peers whose steps change nothing any more, with equal anchors. The first one has moved a last time."""
    # With some seeds the last partner has met an earlier one, and brings a part back.
    town = Ending.trained(peers, seed=8)
    for trainer in town.trainers.values():
        trainer.stand_still()
    for host in town.hosts:
        host.algorithm.clip = math.inf
    town.run(30.0)
    town.trainers[0].die()
    town.run(0.1)
    before = town.anchors(*range(peers))
    assert distance(before) < 1e-3 * PUSH
    town.hosts[0].algorithm.ledger.a += np.float32(PUSH)
    town.peer(0)._replica.averaging.passes = 0
    return town, before.mean(0)


@pytest.mark.parametrize("peers", SIZES)
def test_the_last_movement_enters_the_mean_of_the_others_once(peers):
    town, before = pushed(peers)
    town.finish(0)
    waiting(town, 0)
    town.run(3.0)
    moved = float((town.anchors(*range(1, peers)).mean(0) - before).mean()) / PUSH
    assert finishing(town, 0).handed_in
    assert 0.85 / peers < moved < 1.01 / (peers - 1), "some of it may come back"


@pytest.mark.parametrize("peers", SIZES)
def test_peers_that_end_long_before_the_last_one_hold_its_final_model(peers):
    town, everybody = Ending.trained(peers), range(peers)
    for index in range(peers - 1):
        town.finish(index)
        town.run(2.0)
    town.run(20.0)
    assert all(finishing(town, index).handed_in and not town.of(index, Finished) for index in range(peers - 1))
    town.trainers[peers - 1].die()
    town.run(0.5)
    [last] = town.points(peers - 1)
    town.finish(peers - 1)
    reports = town.finished(*everybody)
    assert all(len(report.closers) == peers and report.closeness.agrees for report in reports)
    assert not any(report.early or report.without for report in reports)
    after = town.anchors(*everybody)
    assert distance(after) < 5e-5
    assert np.abs(after[0] - last).max() < 2.0**-8 * np.abs(last).max(), "its model but for the rounding of the copies"


@pytest.mark.parametrize("peers", [2, 3, 8])
def test_an_old_anchor_never_mixes_into_the_others_again(peers):
    town, everybody = Ending.trained(peers), range(peers)
    town.finish(0)
    waiting(town, 0)
    town.run(2.0)
    town.hosts[0].algorithm.ledger.a += np.float32(50.0)
    town.events[0].clear()
    town.run(20.0)
    assert not town.of(0, ExchangeEnded) and town.of(0, ResyncEnded), "it follows by transfers alone"
    town.finish(*everybody[1:])
    reports = town.finished(*everybody)
    assert all(len(report.closers) == peers and report.closeness.agrees for report in reports)
    assert np.abs(town.anchors(*everybody)).max() < 10.0


def test_peers_whose_training_ends_within_two_rounds_come_to_the_mean_of_all_without_a_transfer():
    town = Ending.trained(4)
    for index in range(4):
        town.finish(index)
        town.run(0.3)
    reports = town.finished(0, 1, 2, 3)
    assert all(len(report.closers) == 4 and report.closeness.agrees for report in reports)
    assert not any(town.of(index, ResyncEnded) for index in range(4))


def test_a_peer_leaves_after_its_wait_without_a_final_model_and_the_last_one_has_its_steps():
    town = Ending.trained(2)
    town.finish(0, wait=10.0)
    [early] = town.finished(0)
    assert early.early and early.closers == (town.hosts[0].id,) and not early.closeness.agrees
    assert early.without == (town.hosts[1].id,)
    assert FinishPhase(Phase.CLOSING) not in town.of(0, FinishPhase) and town.net.now < 18.0
    counts = finishing(town, 0).counts
    assert counts.steps == town.peer(0).view.own_progress.steps and counts.clock <= town.peer(1).view.clock
    town.run(10.0)
    assert town.peer(1).view.members[town.hosts[0].id].state is State.LEFT
    town.finish(1)
    [last] = town.finished(1)
    assert last.closeness.agrees and not last.early and not last.without


def test_a_peer_that_waits_for_nobody_hands_its_steps_in_all_the_same():
    town = Ending.trained(2)
    town.finish(0, wait=0.0)
    [early] = town.finished(0)
    assert early.early and finishing(town, 0).handed_in


def test_peers_that_end_early_one_after_the_other_leave_one_after_the_other():
    town = Ending.trained(3)
    town.finish(0, wait=6.0)
    town.run(3.0)
    town.finish(1, wait=6.0)
    first, second = town.finished(0, 1)
    assert first.early and second.early
    assert first.without == tuple(sorted(town.hosts[index].id for index in (1, 2))), "1 had trained on when 0 ended"
    town.run(5.0)
    town.finish(2)
    [last] = town.finished(2)
    assert last.closeness.agrees and not last.without


def test_the_wait_for_members_that_train_is_told_and_so_is_the_hand_in():
    town = Ending.trained(3)
    town.peer(0)._replica.averaging.hand_in = lambda passes, now: False
    town.finish(0, wait=50.0)
    town.run(2.0)
    others = {town.hosts[index].id for index in (1, 2)}
    progress = finishing(town, 0).progress(town.net.now)
    assert progress.handing and progress.phase is Phase.RUNNING and {*progress.awaited} == others
    assert 0.0 < progress.left < 30.0
    del town.peer(0)._replica.averaging.hand_in
    waiting(town, 0)
    progress = finishing(town, 0).progress(town.net.now)
    assert progress.handed_in and not progress.handing and {*progress.awaited} == others
    assert 45.0 < progress.left <= 50.0


def test_steps_that_nobody_takes_are_named_by_the_last_peer():
    town = Ending.trained(2)
    averaging = town.peer(0)._replica.averaging
    averaging.hand_in = lambda passes, now: False
    town.trainers[0].die()
    town.run(1.0)
    town.finish(0, wait=5.0)
    averaging.passes = 0
    averaging._passed = lambda chunk: None
    [early] = town.finished(0)
    assert early.early and not finishing(town, 0).handed_in and town.net.now < 50.0, "the hand-in is bounded"
    town.run(5.0)
    town.finish(1)
    [last] = town.finished(1)
    assert last.without == (town.hosts[0].id,) and last.closeness.agrees


def test_a_call_ends_all_together_and_nothing_is_handed_in():
    town = Ending.trained(4)
    town.finish(2, calls=True)
    reports = town.finished(0, 1, 2, 3)
    assert all(len(report.closers) == 4 and report.closeness.agrees for report in reports)
    assert not any(finishing(town, index).handed_in or report.without for index, report in enumerate(reports))


def test_a_call_while_one_peer_waits_ends_all_with_one_model():
    town = Ending.trained(3)
    town.finish(0)
    town.run(15.0)
    town.finish(1, calls=True)
    reports = town.finished(0, 1, 2)
    assert all(len(report.closers) == 3 and report.closeness.agrees for report in reports)
    assert distance(town.anchors(0, 1, 2)) < 1e-5


def test_the_last_trainer_is_lost_and_the_spare_has_the_final_model():
    town = Ending.trained(2)
    town.finish(0)
    town.run(8.0)
    lose(town, 1)
    [report] = town.finished(0)
    assert report.closeness.agrees and not report.early and report.without == (town.hosts[1].id,)


def test_a_spare_that_is_lost_costs_the_last_peer_nothing():
    town = Ending.trained(2)
    town.finish(0)
    town.run(8.0)
    lose(town, 0)
    town.run(8.0)
    town.finish(1)
    [report] = town.finished(1)
    assert report.closers == (town.hosts[1].id,) and report.closeness.agrees and not report.without


def test_a_spare_whose_last_source_has_gone_has_no_final_model():
    town = Ending.trained(2)
    town.finish(0)
    town.run(15.0)
    town.peer(0)._replica.givers = list
    town.finish(1, wait=1.0)
    early, last = town.finished(0, 1)
    assert early.early and early.without == (town.hosts[1].id,)
    assert last.closeness.agrees and not last.without


def test_a_member_that_only_idles_does_not_keep_the_others_from_a_final_model():
    town = Ending.trained(3)
    town.trainers[2].die()
    town.run(15.0)
    town.finish(0, 1, wait=10.0)
    reports = town.finished(0, 1)
    assert all(len(report.closers) == 2 and report.closeness.agrees and not report.early for report in reports)
    assert all(report.without == (town.hosts[2].id,) for report in reports)


def test_the_last_trainer_is_lost_and_a_member_that_idles_does_not_keep_the_spare_from_a_final_model():
    town = Ending.trained(3)
    town.trainers[2].die()
    town.run(15.0)
    town.finish(0, wait=20.0)
    town.run(10.0)
    lose(town, 1)
    [report] = town.finished(0)
    assert not report.early and report.closeness.agrees
    assert report.without == tuple(sorted(town.hosts[index].id for index in (1, 2)))


@pytest.mark.parametrize(
    "changes", [{"sync": True}, {"averaging": averaging_config(codec="fp32")}], ids=["sync", "fp32"]
)
def test_steps_are_handed_in_with_other_modes_and_codecs(changes):
    town = Ending.trained(3, **changes)
    town.finish(0)
    waiting(town, 0)
    assert finishing(town, 0).handed_in and town.net.now < 20.0
    town.run(10.0)
    town.finish(1, 2)
    assert all(len(report.closers) == 3 and report.closeness.agrees for report in town.finished(0, 1, 2))


def test_an_outbound_only_peer_hands_its_steps_in_to_the_one_that_it_can_dial():
    town = Ending(0)
    town.hosts = [town.net.add(configured(), outbound=index > 0) for index in range(3)]
    for index in range(3):
        town.start(index, found=index == 0)
        town.train(index)
        town.run(0.5)
    town.run(5.0)
    town.finish(1)
    town.run(35.0)
    assert finishing(town, 1).handed_in
    town.finish(0, 2)
    assert all(report.closeness.agrees for report in town.finished(0, 1, 2))


@pytest.mark.parametrize("after", [0.05, 0.2, 0.5, 1.0, 2.0])
def test_a_peer_killed_while_another_hands_in_costs_nothing(after):
    town = Ending.trained(3)
    town.finish(0)
    town.run(after)
    lose(town, 1)
    town.run(20.0)
    town.finish(2)
    reports = town.finished(0, 2)
    assert all(len(report.closers) == 2 and report.closeness.agrees for report in reports)
    assert all(report.without == (town.hosts[1].id,) for report in reports)


def test_loss_repetition_and_disorder_of_messages_delay_the_hand_in_only():
    town = Ending.trained(4)
    bad = dataclasses.replace(town.net.conditions, latency=0.02, loss=0.15, duplicate=0.1, reorder=0.2, late=0.5)
    town.net.set_conditions(bad)
    town.finish(0)
    waiting(town, 0)
    town.run(20.0)
    assert finishing(town, 0).handed_in
    town.finish(1, 2, 3)
    reports = town.finished(0, 1, 2, 3)
    assert all(len(report.closers) == 4 and report.closeness.agrees for report in reports)


def test_a_process_that_goes_and_comes_again_ends_nothing():
    town = Ending.trained(2)
    for _ in range(2):
        town.trainers[0].die()
        town.run(5.0)
        town.train(0)
        town.run(5.0)
    assert not any(town.of(index, FinishBegan) for index in (0, 1)) and town.peer(0)._replica.rounds.trains
    assert {town.peer(index).view.me.phase for index in (0, 1)} == {Phase.RUNNING}


def test_a_spare_whose_daemon_restarts_waits_again_and_finishes_with_the_last():
    town = Ending.trained(2)
    town.finish(0)
    town.run(5.0)
    town.hosts[0].save()
    town.net.stop(town.hosts[0])
    town.run(1.0)
    town.net.start(town.hosts[0], seeds=town.hosts[1:])
    town.run(5.0)
    town.finish(0)
    town.run(10.0)
    assert town.peer(0).view.me.phase is Phase.WAITING and not town.of(0, Finished)
    town.finish(1)
    reports = town.finished(0, 1)
    assert all(len(report.closers) == 2 and report.closeness.agrees for report in reports)


def test_a_spare_that_never_comes_costs_the_last_peer_a_bounded_time():
    town = Ending.trained(2)
    town.finish(0)
    town.run(8.0)
    town.peer(0)._replica.ending._await = lambda facts, now, **options: None
    town.finish(1, wait=10.0)
    town.run(14.0)
    progress = finishing(town, 1).progress(town.net.now)
    assert progress.phase is Phase.DONE and progress.awaited == (town.hosts[0].id,)
    [report] = town.finished(1)
    assert report.closeness.agrees and report.closers == (town.hosts[1].id,) and not report.without


def test_the_last_copy_is_of_the_model_at_rest():
    """A source served a frozen copy of its training, made for another peer just before its end."""
    town = Ending.trained(2)
    town.finish(0)
    source = town.peer(1)._replica.source
    while source._snapshot is None:
        town.run(0.05)
    snapshots = []
    rested = town.peer(1)._replica.averaging.rest
    town.peer(1)._replica.averaging.rest = lambda: (snapshots.append(source._snapshot), rested())[1]
    town.finish(1)
    while not snapshots:
        town.run(0.001)
    assert snapshots[0] is not None and source._snapshot is not snapshots[0]
