"""Two halves meet again. After a long cut the smaller side follows the larger, and keeps what it gives up. After a
short one they average. A peer that has fallen behind follows the network (algorithms section 8, I15)."""

import numpy as np
import pytest

from gossipdp.protocol.events import ResyncBegan, ResyncEnded, SessionOpened, StateReady, TransferProgress
from gossipdp.protocol.membership.config import LOCAL
from simulations.simulator.network import Conditions
from tests.simulations.simulator.divided_cluster import FAR, ROUND, STEP, Divided

SEEDS = [0, pytest.param(1, marks=pytest.mark.long)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("smaller", [(5, 6, 7), pytest.param((0, 1, 2), marks=pytest.mark.long), (4,)])
def test_smaller_side_of_a_long_cut_follows_the_larger(seed, smaller):
    cluster = Divided(8, seed=seed)
    larger = [number for number in range(8) if number not in smaller]
    cluster.cut(larger, smaller)
    cluster.go_on(22 * ROUND)
    theirs, ours = cluster.mean(larger), cluster.mean(smaller)
    assert np.abs(theirs - ours).min() > 0.3 * FAR
    cluster.heal()
    cluster.go_on(25.0)
    assert cluster.resynced == sorted(smaller)
    cluster.ends_at(theirs)
    for host in cluster.side(smaller):
        (kept,) = host.pinned
        assert np.abs(kept.a - ours).max() < 0.1 * FAR
    assert not any(host.pinned for host in cluster.side(larger))


@pytest.mark.parametrize("seed", SEEDS)
def test_of_equal_sides_exactly_one_follows_the_other(seed):
    cluster = Divided(8, seed=seed)
    sides = (0, 2, 4, 6), (1, 3, 5, 7)
    cluster.cut(*sides)
    cluster.go_on(22 * ROUND)
    models = [cluster.mean(side) for side in sides]
    cluster.heal()
    cluster.go_on(25.0)
    losers = [side for side in sides if set(side) & set(cluster.resynced)]
    assert len(losers) == 1 and cluster.resynced == sorted(losers[0])
    cluster.ends_at(models[sides.index(losers[0]) - 1])


@pytest.mark.parametrize("where", ["alone", pytest.param("among others", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", SEEDS)
def test_founder_restarted_in_one_half_founds_nothing_and_follows_the_larger(seed, where):
    cluster = Divided(8, seed=seed)
    smaller = (0,) if where == "alone" else (0, 1, 2)
    larger = [number for number in range(8) if number not in smaller]
    founder = cluster.network.hosts[0]
    cluster.save(founder)
    cluster.cut(larger, smaller)
    cluster.go_on(5 * ROUND)
    cluster.crash(founder, trainer=True, disk=True, torn=False)
    cluster.go_on(2.0)
    cluster.restart(founder)
    cluster.go_on(1.0)
    cluster.aim(0, 1)
    cluster.go_on(25 * ROUND)
    assert founder.running.view.ready
    cluster.meet_again(larger, smaller)


@pytest.mark.long
def test_sides_that_forgot_each_other_meet_again_through_the_seeds():
    """Times as after days: dead members are forgotten after one."""
    cluster = Divided(8, forget_after=5.0)
    larger, smaller = (0, 1, 2, 3, 4), (5, 6, 7)
    cluster.cut(larger, smaller)
    cluster.go_on(50 * ROUND)
    for side, others in ((larger, smaller), (smaller, larger)):
        strangers = {host.id for host in cluster.side(others)}
        assert all(strangers.isdisjoint(host.running.view.members) for host in cluster.side(side))
    cluster.meet_again(larger, smaller, seconds=60.0)


@pytest.mark.long
@pytest.mark.parametrize("forget_after", [LOCAL.forget_after, 5.0], ids=["known", "forgotten"])
def test_founder_back_at_a_new_address_belongs_to_the_half_it_is_in_and_founds_nothing(forget_after):
    cluster = Divided(8, forget_after=forget_after)
    smaller, larger = (0, 1, 2), (3, 4, 5, 6, 7)
    founder = cluster.network.hosts[0]
    cluster.save(founder)
    cluster.cut(larger, smaller)
    cluster.go_on(5 * ROUND)
    cluster.crash(founder, trainer=True, disk=True, torn=False)
    cluster.go_on(8.0)
    cluster.move(founder, "10.9.9.9:4710")
    cluster.restart(founder)
    cluster.go_on(1.0)
    cluster.aim(0, 1)
    cluster.go_on(25 * ROUND)
    cluster.meet_again(larger, smaller, seconds=60.0)
    addresses = {host.running.view.members[founder.id].address for host in cluster.network.hosts[1:]}
    assert addresses == {"10.9.9.9:4710"}


@pytest.mark.parametrize("seed", [*SEEDS, pytest.param(3, marks=pytest.mark.long)])
def test_three_sides_end_at_the_largest(seed):
    cluster = Divided(9, seed=seed)
    sides = (0, 1, 2, 3), (4, 5, 6), (7, 8)
    cluster.cut(*sides)
    cluster.go_on(22 * ROUND)
    theirs = cluster.mean(sides[0])
    cluster.heal()
    cluster.go_on(30.0)
    assert set(cluster.resynced) == {4, 5, 6, 7, 8}
    cluster.ends_at(theirs)


@pytest.mark.long
def test_peer_that_joined_or_restarted_in_a_half_belongs_to_it():
    cluster = Divided(8, seed=1)
    larger, smaller = (0, 1, 2, 3, 4), (5, 6, 7)
    cluster.crash(cluster.network.hosts[4], trainer=True, disk=False, torn=False)
    cluster.crash(cluster.network.hosts[7], trainer=True, disk=False, torn=False)
    cluster.go_on(0.5)
    cluster.cut(larger, smaller)
    cluster.go_on(5 * ROUND)
    for number in (4, 7):
        host = cluster.network.hosts[number]
        cluster.network.start(host, seeds=cluster.side((0, 5)))
        cluster.books.started(host)
        cluster.train(host)
    cluster.go_on(2.0)
    cluster.aim(7, 1)
    cluster.go_on(22 * ROUND)
    cluster.meet_again(larger, smaller)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_peers_of_either_side_that_crash_in_the_middle_change_nothing(seed):
    cluster = Divided(8, seed=seed, conditions=Conditions(loss=0.1, bandwidth=2e4))
    larger, smaller = (0, 1, 2, 3, 4), (5, 6, 7)
    cluster.cut(larger, smaller)
    cluster.go_on(22 * ROUND)
    theirs = cluster.mean(larger)
    cluster.heal()
    began = len(cluster.heard)
    while not any(isinstance(event, ResyncBegan) for _, _, event in cluster.heard[began:]):
        cluster.go_on(0.1)
    cluster.go_on(1.0)
    for number in (0, 6):
        cluster.crash(cluster.network.hosts[number], trainer=True, disk=True, torn=False)
    cluster.go_on(1.0)
    for number in (0, 6):
        cluster.restart(cluster.network.hosts[number])
        cluster.go_on(0.1)
        cluster.trainers[number].stand_still()
    cluster.go_on(60.0)
    assert {5, 7} <= set(cluster.resynced) <= {5, 6, 7}
    # Nothing is at rest while every tenth message is lost.
    cluster.network.set_conditions(Conditions())
    cluster.go_on(15.0)
    cluster.ends_at(theirs)


def test_follower_whose_sources_die_halfway_keeps_its_own_model_whole():
    cluster = Divided(5, conditions=Conditions(bandwidth=1e4))
    larger, loser = (0, 1, 2), (3,)
    cluster.crash(cluster.network.hosts[4], trainer=True, disk=True, torn=False)
    cluster.cut(larger, loser)
    cluster.go_on(22 * ROUND)
    cluster.heal()
    began = len(cluster.heard)
    while not any(host == 3 and isinstance(event, TransferProgress) for _, host, event in cluster.heard[began:]):
        cluster.go_on(0.1)
    theirs, [kept] = cluster.mean(larger), cluster.network.hosts[3].pinned
    anchor = cluster.network.hosts[3].algorithm.ledger.a
    torn = np.abs(anchor - theirs) < 0.5
    assert torn.any() and not torn.all()
    cluster.network.links.cut(cluster.side(larger), cluster.side(loser))
    for number in larger:
        cluster.crash(cluster.network.hosts[number], trainer=True, disk=True, torn=False)
    cluster.go_on(30.0)
    assert [event.complete for host, event in cluster.of(ResyncEnded) if host == 3] == [False]
    assert np.abs(anchor - kept.a).max() < 0.5
    cluster.check_rest()


def test_peer_of_the_larger_side_without_its_model_soon_gets_the_smaller_side_s():
    """A follower waits for the members of the other side. One of them has lost its model and asks for it."""
    cluster = Divided(2)
    cluster.cut((0,), (1,))
    cluster.go_on(22 * ROUND)
    cluster.heal(still=False)
    began = len(cluster.heard)
    while not (follows := [host for _, host, event in cluster.heard[began:] if isinstance(event, ResyncBegan)]):
        cluster.go_on(0.01)
    winner = cluster.network.hosts[1 - follows[0]]
    cluster.crash(winner, trainer=True, disk=False, torn=False)
    cluster.go_on(4.0)
    before = cluster.network.now
    cluster.restart(winner)
    cluster.go_on(4.0)
    [ready] = [at for at, host, event in cluster.heard if at > before and isinstance(event, StateReady)]
    assert ready < before + 16 * LOCAL.join_interval
    assert [event.complete for _, event in cluster.of(ResyncEnded)] == [False]
    cluster.go_on(10.0)
    cluster.check_rest()


@pytest.mark.parametrize(("smaller", "rounds"), [((4, 5, 6, 7), 5), ((5, 6, 7), 5), ((7,), 2)])
def test_short_cut_resyncs_no_peer(smaller, rounds):
    every = 20
    cluster = Divided(8, every=every)
    larger = [number for number in range(8) if number not in smaller]
    cluster.network.links.cut(cluster.side(larger), cluster.side(smaller))
    cluster.go_on(rounds * every * STEP)
    cluster.heal(still=False)
    cluster.go_on(25.0)
    assert not cluster.of(ResyncBegan)
    cluster.check_rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_peer_cut_off_from_four_others_for_five_rounds_follows_them(seed):
    cluster = Divided(5, seed=seed)
    cluster.cut((0, 1, 2, 3), (4,))
    cluster.go_on(7 * ROUND)
    theirs = cluster.mean((0, 1, 2, 3))
    cluster.heal()
    cluster.go_on(15.0)
    assert [(host, event.reason) for host, event in cluster.of(ResyncBegan)] == [(4, "lag")]
    assert cluster.followed("lag") == [4] and not cluster.network.hosts[4].pinned
    cluster.ends_at(theirs)


def test_two_peers_cut_from_each_other_for_five_rounds_average():
    cluster = Divided(2)
    cluster.cut((0,), (1,))
    cluster.go_on(7 * ROUND)
    cluster.heal(still=False)
    cluster.go_on(15.0)
    assert not cluster.of(ResyncBegan)
    cluster.check_rest()


def test_peer_stopped_for_a_minute_follows_the_others():
    cluster = Divided(5)
    cluster.network.pause(cluster.network.hosts[2], 60.0)
    for number in (0, 1, 3, 4):
        cluster.aim(number, 1)
    cluster.go_on(61.0)
    cluster.meet_again((0, 1, 3, 4), [2], seconds=20.0)


@pytest.mark.parametrize(("rounds", "reason"), [(6, "lag"), (8, "lag"), (75, "apart")])
def test_peer_stopped_amid_an_exchange_follows_and_blames_no_partner_for_the_time(rounds, reason):
    """The end of that exchange does not show that it is in step. Its length does not show a slow partner."""
    cluster = Divided(5)
    stopped = cluster.network.hosts[2]
    while stopped.running.view.partner is None:
        cluster.go_on(0.01)
    cluster.network.pause(stopped, rounds * ROUND)
    cluster.go_on(rounds * ROUND + 12.0)
    assert cluster.followed(reason) == [2]
    others = [host.id for host in cluster.network.hosts]
    for host in cluster.network.hosts:
        assert not host.running._replica.averaging._offers._known.left_alone(others, cluster.network.now, asks=True)


def test_two_peers_stopped_together_end_at_one_model_with_the_third():
    """One peer's claim is no proof for two that have each other. The claim of two is proof for one."""
    cluster = Divided(3)
    for host in cluster.side((1, 2)):
        cluster.network.pause(host, 60.0)
    cluster.aim(0, 1)
    cluster.go_on(61.0)
    cluster.meet_again((1, 2), [0], seconds=40.0)


def test_straggler_of_a_tenth_of_the_speed_is_not_lagging():
    cluster = Divided(5)
    cluster.network.hosts[3].step_slowness = 10.0
    cluster.go_on(60 * ROUND)
    assert not cluster.of(ResyncBegan)


@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 19))])
def test_peers_that_all_were_alone_for_long_average(seed):
    every = 20
    cluster = Divided(4, seed=seed, every=every)
    hosts = cluster.network.hosts
    for host in hosts:
        cluster.network.links.cut([host], [other for other in hosts if other is not host])
    cluster.go_on(5 * every * STEP)
    cluster.heal(still=False)
    cluster.go_on(20.0)
    assert not cluster.of(ResyncBegan)
    cluster.check_rest()


def half_taken():
    """Four peers, one of which was alone and has fetched some chunks of the others' model."""
    cluster = Divided(4, chunks=8)
    alone = cluster.network.hosts[3]
    cluster.cut((0, 1, 2), (3,))
    cluster.go_on(22 * ROUND)
    alone.downlink = 6e3
    cluster.heal(still=False)
    for _ in range(800):
        cluster.go_on(0.05)
        if alone.running.view.resyncing and len(alone.running._replica._replacement.taken) >= 3:
            return cluster, alone
    pytest.fail("it never began to follow")


@pytest.mark.long
def test_training_process_that_comes_during_a_resync_waits_until_the_model_is_whole():
    cluster, alone = half_taken()
    before = cluster.network.now
    cluster.kill_trainer(alone)
    cluster.go_on(0.01)
    cluster.train(alone)
    cluster.go_on(40.0)
    told = [(at, event) for at, host, event in cluster.heard if host == 3 and at > before]
    [opened] = [at for at, event in told if isinstance(event, SessionOpened)]
    [ended] = [at for at, event in told if isinstance(event, ResyncEnded)]
    assert opened >= ended


def test_during_a_resync_no_checkpoint_is_made():
    cluster, alone = half_taken()
    kept = alone.checkpoint
    cluster.save(alone)
    assert alone.checkpoint is kept and not alone.running.view.whole
    cluster.go_on(40.0)
    cluster.save(alone)
    assert alone.checkpoint is not kept and alone.running.view.whole
