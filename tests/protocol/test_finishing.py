"""The end of a run: peers whose training is over come to their mean, whoever is missing, late, cut off or killed."""

import dataclasses

import numpy as np
import pytest

from gossipdp.protocol.events import ExchangeEnded, FinishBegan, Finished, FinishPhase, OfferRefused, RoundDone
from gossipdp.protocol.wire.messages import Phase, State
from simulations.simulator.settings import averaging_config
from tests.protocol.finish_rig import MARK, Ending, distance
from tests.protocol.peer_rig import configured


@pytest.mark.parametrize("peers", [2, 3, 5, 8, 16])
def test_all_hold_the_mean_of_all_without_lookahead_after_one_cycle_and_two_exchanges(peers):
    town, all_of_them = Ending.trained(peers), range(peers)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    before = town.points(*all_of_them)
    assert (town.anchors(*all_of_them) != before).any()
    town.finish(*all_of_them)
    reports = town.finished(*all_of_them)
    after = town.anchors(*all_of_them)
    assert distance(after) <= MARK * distance(before)
    assert np.abs(after.mean(0) - before.mean(0)).max() < 1e-6, "the mean has moved"
    assert all(len(report.closers) == peers and report.closeness.agrees for report in reports)
    assert all(report.closeness.now <= MARK * report.closeness.before for report in reports)
    if peers & (peers - 1) == 0:
        least = peers.bit_length() + 1  # ceil(log2 N) + 2
        assert max(report.closeness.exchanges for report in reports) <= least


def test_no_outer_step_moves_an_anchor_and_no_momentum_pulls_after_the_end():
    town = Ending.trained(2)
    town.finish(0, 1)
    town.run(0.2)
    momenta = [host.algorithm.ledger.v.copy() for host in town.hosts]
    rounds = [host.peer.view.model_rounds for host in town.hosts]
    town.finished(0, 1)
    assert all((host.algorithm.ledger.v == before).all() for host, before in zip(town.hosts, momenta, strict=True))
    assert [host.peer.view.model_rounds for host in town.hosts] == rounds


def test_the_final_model_has_one_clock_on_all_peers_whenever_their_training_ended():
    town = Ending.trained(3)
    town.finish(2)
    town.run(2.0)
    town.finish(0)
    town.run(2.0)
    first, second, last = (town.peer(index)._replica for index in (2, 0, 1))
    assert first.state_clock < second.state_clock
    town.finish(1)
    town.finished(0, 1, 2)
    assert first.state_clock == second.state_clock == last.state_clock == last.clock


def test_the_clock_of_a_model_that_was_old_when_it_came_does_not_fall_as_training_ends():
    """Checkpoints after training had a lower clock than one before its end."""
    town = Ending.trained(2)
    town.net.set_conditions(dataclasses.replace(town.net.conditions, job=0.4))
    town.hosts.append(town.net.add(configured()))
    town.start(2)
    town.train(2)
    while not town.of(2, RoundDone):
        town.run(0.02)
    replica = town.peer(2)._replica
    before = replica.state_clock
    assert replica.fetched_in
    town.trainers[2].die()
    town.run(0.02)
    assert not replica.rounds.trains and replica.state_clock == before


def test_a_lone_peer_finishes_at_once_with_its_anchor():
    town = Ending.trained(1)
    town.trainers[0].die()
    town.run(1.0)
    before = town.anchors(0)
    town.finish(0)
    [report] = town.finished(0)
    assert report.closers == (town.hosts[0].id,) and report.closeness.agrees and report.closeness.now == 0.0
    assert (town.anchors(0) == before).all(), "alone it steps without lookahead"


def left_alone():
    """A peer whose last round had momentum. It has just lost its only partner, and trains no more."""
    town = Ending.trained(2)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    town.net.stop(town.hosts[1])
    town.run(5.0)
    return town


def test_a_peer_that_finishes_alone_takes_the_lookahead_out_too():
    town = left_alone()
    before, point = town.anchors(0), town.points(0)
    town.finish(0)
    [report] = town.finished(0)
    assert report.closers == (town.hosts[0].id,) and report.closeness.agrees
    town.run(0.1)
    assert (town.anchors(0) == point).all() and (point != before).any()


@pytest.mark.parametrize("ended", [False, True], ids=["in training", "after the end"])
def test_a_daemon_that_restarts_from_its_checkpoint_takes_the_lookahead_out_once(ended):
    town = left_alone()
    point = town.points(0)
    if ended:
        town.finish(0)
        town.finished(0)
        town.run(0.1)
    town.hosts[0].save()
    town.net.stop(town.hosts[0])
    town.events[0].clear()
    town.start(0)
    town.run(10.0)
    town.finish(0)
    town.finished(0)
    town.run(0.1)
    assert (town.anchors(0) == point).all()


def test_a_peer_that_closes_again_for_a_newcomer_takes_nothing_out_again():
    town = Ending.trained(3)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    before = town.points(0, 1, 2)
    town.finish(0, 1, wait=0.5)
    while FinishPhase(Phase.DONE) not in town.of(0, FinishPhase):
        town.run(0.01)
    town.finish(2)
    town.finished(0, 1, 2)
    phases = [event.phase for event in town.of(0, FinishPhase)]
    assert phases == [Phase.WAITING, Phase.CLOSING, Phase.DONE, Phase.CLOSING, Phase.DONE]
    after = town.anchors(0, 1, 2)
    assert distance(after) < 1e-5 and np.abs(after.mean(0) - before.mean(0)).max() < 1e-6


def test_a_member_that_keeps_its_lookahead_agrees_with_the_others(monkeypatch):
    """As one of an earlier version does."""
    town = Ending.trained(2)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    monkeypatch.setattr(town.peer(1)._replica.averaging, "rest", lambda: None)
    before = np.concatenate([town.points(0), town.anchors(1)])
    town.finish(0, 1)
    assert all(report.closeness.agrees for report in town.finished(0, 1))
    after = town.anchors(0, 1)
    assert distance(after) < 1e-5 and np.abs(after.mean(0) - before.mean(0)).max() < 1e-6


def test_the_last_round_of_a_peer_is_in_its_anchor_before_it_closes():
    town = Ending.trained(2)
    town.net.set_conditions(dataclasses.replace(town.net.conditions, job=0.5))
    trainer, peer = town.trainers[0], town.peer(0)
    while peer._replica.rounds.at_rest or peer._replica.rounds.handed_out:
        town.run(0.01)
    made = peer.view.model_rounds
    trainer.die()
    town.finish(0, 1)
    town.run(0.01)
    assert peer.view.me.phase is Phase.RUNNING, "a round is under way"
    town.net.set_conditions(dataclasses.replace(town.net.conditions, job=0.001))
    town.finished(0, 1)
    assert peer.view.model_rounds > made


def test_a_peer_that_ends_first_waits_and_meets_no_peer_that_trains():
    town = Ending.trained(3)
    town.finish(0)
    town.run(3.0)
    for events in town.events.values():
        events.clear()
    town.run(30.0)
    assert town.peer(0).view.me.phase is Phase.WAITING and not town.of(0, ExchangeEnded)
    assert town.of(1, ExchangeEnded) and not town.of(1, Finished)
    progress = town.peer(0).view.finish_progress(town.net.now)
    assert set(progress.awaited) == {town.hosts[1].id, town.hosts[2].id} and progress.left < 600.0
    town.finish(1, 2)
    town.finished(0, 1, 2)
    assert distance(town.anchors(0, 1, 2)) < 1e-5


def test_the_wait_for_members_that_train_ends():
    town = Ending.trained(3)
    town.hosts[2].peer._replica.ending._follows = False
    town.finish(0, calls=True, wait=6.0)
    town.run(5.0)
    assert not town.of(0, Finished)
    reports = town.finished(0, 1)
    assert all(len(report.closers) == 2 for report in reports) and town.net.now < 16.0
    assert all(report.without == (town.hosts[2].id,) and not report.early for report in reports)
    assert distance(town.anchors(0, 1)) < 1e-5
    [clock] = {town.peer(index).view.state_clock for index in (0, 1)}
    assert clock < town.peer(2).view.clock, "the clock of those that have ended"
    rounds = town.peer(2).view.model_rounds
    town.run(5.0)
    assert town.peer(2).view.model_rounds > rounds and town.peer(2).view.me.phase is Phase.RUNNING


def test_a_member_that_has_made_no_step_is_waited_for_a_minute():
    town = Ending.trained(2)
    town.hosts.append(town.net.add(configured()))
    town.start(2)
    town.run(2.0)
    town.finish(0, 1)
    town.run(50.0)
    assert not town.of(0, Finished) and not town.of(1, Finished)
    town.finished(0, 1)
    assert town.net.now < 80.0


def test_a_member_that_begins_meanwhile_is_waited_for_as_long_as_any_other():
    town = Ending.trained(2)
    town.hosts.append(town.net.add(configured()))
    town.start(2)
    town.run(2.0)
    town.finish(0, 1)
    town.run(5.0)
    town.train(2)
    town.run(80.0)
    assert not town.of(0, Finished)
    town.finish(2)
    reports = town.finished(0, 1, 2)
    assert all(len(report.closers) == 3 for report in reports)
    assert distance(town.anchors(0, 1, 2)) < 1e-5


def test_a_call_ends_the_training_of_all_members_and_names_the_caller():
    town = Ending.trained(4)
    town.finish(2, calls=True)
    reports = town.finished(0, 1, 2, 3)
    assert all(len(report.closers) == 4 and report.closeness.agrees for report in reports)
    assert distance(town.anchors(0, 1, 2, 3)) < 1e-5
    [begun] = town.of(2, FinishBegan)
    assert begun == FinishBegan(b"", True)
    callers = {town.of(index, FinishBegan)[0].by for index in (0, 1, 3)}
    assert town.hosts[2].id in callers and callers <= {host.id for host in town.hosts}


def test_a_peer_that_does_not_follow_trains_on():
    town = Ending.trained(3)
    town.hosts[1].peer._replica.ending._follows = False
    town.finish(0, calls=True, wait=4.0)
    reports = town.finished(0, 2)
    assert all(len(report.closers) == 2 for report in reports)
    assert not town.of(1, FinishBegan) and town.trainers[1].alive


def test_a_call_of_a_member_set_aside_is_not_followed():
    town = Ending.trained(3)
    town.hosts[1].peer._replica.ending._strikes.shuns = lambda peer, now: peer == town.hosts[0].id
    town.finish(0, calls=True)
    town.run(0.1)
    assert all(begun.by != town.hosts[0].id for begun in town.of(1, FinishBegan))


@pytest.mark.parametrize("after", [0.02, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4])
def test_a_peer_killed_while_all_finish_costs_the_others_nothing(after):
    town = Ending.trained(4)
    town.finish(0, 1, 2, 3)
    town.run(after)
    town.net.stop(town.hosts[3])
    reports = town.finished(0, 1, 2)
    assert all(report.closeness.agrees for report in reports)
    assert distance(town.anchors(0, 1, 2)) < 5e-5


def test_the_caller_may_die_at_once():
    town = Ending.trained(4)
    town.finish(3, calls=True)
    town.run(0.15)
    town.net.stop(town.hosts[3])
    town.finished(0, 1, 2)
    assert distance(town.anchors(0, 1, 2)) < 5e-5


def test_a_peer_that_is_done_waits_for_a_partner_but_not_for_ever():
    town = Ending.trained(3)
    town.finish(0, 1, 2, wait=8.0)
    while not all(town.of(index, FinishPhase)[-1:] == [FinishPhase(Phase.CLOSING)] for index in (0, 1, 2)):
        town.run(0.01)
    town.hosts[2].peer._replica.averaging._closing._agreement.usual = 0.0  # it never agrees
    reports = town.finished(0, 1)
    assert all(report.closeness.agrees for report in reports)
    assert town.net.now < 5.5 + 8.0 + 8.0 + 2.0


@pytest.mark.parametrize("late", [0.3, 2.0])
def test_a_member_that_comes_late_is_taken_in_while_others_close(late):
    town = Ending.trained(4)
    town.trainers[3].die()
    town.run(0.5)
    town.finish(0, 1, 2, wait=late)
    town.run(late)
    town.finish(3)
    reports = town.finished(0, 1, 2, 3)
    anchors = town.anchors(*(index for index, report in enumerate(reports) if len(report.closers) == 4))
    assert len(anchors) != 1 and (len(anchors) == 0 or distance(anchors) < 1e-5)
    assert distance(town.anchors(0, 1, 2)) < 1e-5


def test_halves_that_are_cut_off_from_each_other_finish_by_themselves():
    town = Ending.trained(4)
    cut = town.net.links.cut(town.hosts[:2], town.hosts[2:])
    town.finish(0, 1, 2, 3)
    reports = town.finished(0, 1, 2, 3)
    assert cut and all(len(report.closers) == 2 and report.closeness.agrees for report in reports)
    assert distance(town.anchors(0, 1)) < 1e-5 and distance(town.anchors(2, 3)) < 1e-5


def test_loss_repetition_and_disorder_of_messages_delay_the_end_only():
    town = Ending.trained(4)
    bad = dataclasses.replace(town.net.conditions, latency=0.02, loss=0.15, duplicate=0.1, reorder=0.2, late=0.5)
    town.net.set_conditions(bad)
    town.finish(0, 1, 2, 3)
    reports = town.finished(0, 1, 2, 3)
    assert all(report.closeness.agrees for report in reports) and distance(town.anchors(0, 1, 2, 3)) < 1e-4


def test_replicas_further_apart_than_usual_come_together_at_once():
    town = Ending.trained(2)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    before = town.points(0, 1)
    town.hosts[0].algorithm.ledger.a += np.float32(0.6)
    usual = town.peer(0).view.closeness.before
    town.finish(0, 1)
    reports = town.finished(0, 1)
    assert usual < 0.2 and all(report.closeness.agrees for report in reports)
    assert np.abs(town.anchors(0, 1).mean(0) - before.mean(0) - 0.3).max() < 1e-5
    assert reports[0].closeness.exchanges == 3


def test_two_replicas_implausibly_far_apart_stay_as_they_are_and_do_not_agree():
    town = Ending.trained(2)
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    town.hosts[0].algorithm.ledger.a += np.float32(1e3)
    before = town.points(0, 1)
    town.finish(0, 1)
    reports = town.finished(0, 1)
    assert not any(report.closeness.agrees for report in reports)
    assert [len(report.closers) for report in reports] == [1, 1]
    assert (town.anchors(0, 1) == before).all()


def test_outbound_only_peers_come_to_the_mean_by_the_one_that_they_can_dial():
    town = Ending.trained(4)
    town = Ending(0)
    town.hosts = [town.net.add(configured(), outbound=index > 0) for index in range(4)]
    town.start(0, found=True)
    town.train(0)
    town.run(0.5)
    for index in (1, 2, 3):
        town.start(index)
        town.train(index)
    town.run(5.0)
    town.finish(0, 1, 2, 3)
    reports = town.finished(0, 1, 2, 3)
    assert all(report.closeness.agrees for report in reports) and distance(town.anchors(0, 1, 2, 3)) < 1e-4


def test_a_spare_fetches_the_final_model_and_finishes_with_the_others():
    town = Ending.trained(2, seconds=0.0)
    town.hosts.append(town.net.add(configured()))
    town.start(2)
    town.run(8.0)
    assert 2 not in town.trainers
    for trainer in town.trainers.values():
        trainer.die()
    town.run(1.0)
    points = town.points(0, 1)
    town.finish(0, calls=True)
    [report] = town.finished(2)
    assert report.closers[0] == town.hosts[2].id
    town.finished(0, 1)
    assert distance(town.anchors(0, 1, 2)) < 2e-3
    wanted = [(points.sum(0) + copied) / 3.0 for copied in points]
    assert min(np.abs(town.anchors(2)[0] - mean).max() for mean in wanted) < 2e-3, "its copy had none of the lookahead"


def test_a_peer_without_a_model_waits_for_one_and_then_finishes_without():
    town = Ending(2)
    town.start(1)
    town.finish(1, wait=20.0)
    town.run(15.0)
    assert not town.of(1, Finished)
    [report] = town.finished(1)
    assert report.closers == ()


def test_a_peer_whose_daemon_restarts_while_it_finishes_is_taken_in_again():
    town = Ending.trained(3)
    town.finish(0)
    town.run(2.0)
    town.hosts[0].save()
    town.net.stop(town.hosts[0])
    town.run(0.5)
    town.net.start(town.hosts[0], seeds=town.hosts[1:])
    town.finish(0)
    town.run(10.0)
    assert not town.of(0, Finished)
    town.finish(1, 2)
    reports = town.finished(0, 1, 2)
    assert all(len(report.closers) == 3 and report.closeness.agrees for report in reports)
    assert distance(town.anchors(0, 1, 2)) < 1e-5


def test_leaving_while_others_are_waited_for_ends_at_once():
    town = Ending.trained(2)
    town.finish(0)
    town.run(2.0)
    town.net.command(town.hosts[0], "leave", lambda peer: peer.leave(town.net.now))
    town.run(3.0)
    assert town.peer(0).view.me.state is State.LEFT and not town.of(0, Finished)


def test_a_peer_that_trains_offers_nothing_to_one_whose_training_is_over():
    town = Ending.trained(3)
    town.finish(0)
    town.run(3.0)
    town.events[1].clear()
    town.run(10.0)
    asked = {event.partner for event in town.events[1] if isinstance(event, ExchangeEnded | OfferRefused)}
    assert asked <= {town.hosts[2].id}


def test_other_codecs_close_as_finely():
    for codec in ("fp32", "int8"):
        town = Ending.trained(2, averaging=averaging_config(codec=codec))
        town.finish(0, 1)
        assert all(report.closeness.agrees for report in town.finished(0, 1))


def test_members_that_come_again_and_again_do_not_keep_the_others_from_their_end():
    town = Ending.trained(3)
    town.hosts[2].peer._replica.ending._follows = False
    town.finish(0, 1, calls=True)
    town.run(2.0)
    flapping, phases = town.peer(2)._membership, [Phase.WAITING, Phase.RUNNING]
    until = town.net.now + 120.0
    town.finish(2)
    while town.net.now < until and not all(town.of(index, Finished) for index in (0, 1)):
        town.net.command(town.hosts[2], "flaps", lambda peer: flapping.finish(phases[0], False, town.net.now))
        phases.reverse()
        town.run(0.15)
    assert all(town.of(index, Finished) for index in (0, 1)), "bounded"
    assert distance(town.anchors(0, 1)) < 1e-5


def test_peers_whose_daemons_have_restarted_do_not_wait_for_each_other():
    town = Ending.trained(3)
    for index in (0, 1):
        town.trainers[index].die()
        town.run(0.1)
        town.hosts[index].save()
        town.net.stop(town.hosts[index])
        town.net.start(town.hosts[index], seeds=town.hosts[2:])
        town.run(5.0)
        town.finish(index)
    town.run(5.0)
    town.finish(2)
    began = town.net.now
    reports = town.finished(0, 1, 2)
    assert town.net.now < began + 30.0
    assert max(len(report.closers) for report in reports) >= 2 and distance(town.anchors(0, 1, 2)) < 2e-3
