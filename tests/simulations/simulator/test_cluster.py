"""Five hundred networks under faults, checked after every event (campaign T1: I1, I2, I4, I7 to I12)."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from gossipdp.protocol.events import ExchangeEnded
from simulations.campaigns.networks import PART, play, play_seed
from simulations.simulator.cluster import Cluster, Plan, run_seed
from simulations.simulator.faults import CUTS, FOREVER, KINDS
from simulations.simulator.network import Conditions

ROOT = Path(__file__).resolve().parents[3]


FIRST = 1658
"""`make test-long` plays these seeds. 500 of them are a choice of all kinds; `make test` plays an eighth of these"""
FAILED = (772, 855, 921, 948, 2397, 2491, 2573)
"""seeds that failed once, and are quick"""
WIDE = (40, 100, 120, 514)
"""networks of 16, 8, 16 and 64 peers that must agree (I4)"""
DIVISORS = {4: (4, 4), 5: (8, 4), 6: (12, 8), 8: (16, 3)}
"""peers -> (n, m): one in n of these networks is played, and one in m of those with rings or bridges"""


def crosscuts(plan):
    """Number of rings and bridges that cut off a peer and leave a way around. They need four peers or more."""
    if plan.peers < 4:
        return 0
    bridges = sum(fault.kind == "bridge" and 1 < len(fault.hosts) < plan.peers for fault in plan.script)
    return sum(fault.kind == "ring" for fault in plan.script) + bridges


def often(seed):
    """Whether the seed is among the 500.

    A network of 9 to 16 takes as long as five small ones, and one of 64 as long as thirty. One that must agree, or has
    very late messages or a slow preset, takes two or three times as long. Few of these are played, and more of those
    with rings or bridges.
    """
    plan = Plan.draw(seed)
    peers, brisk = plan.peers, plan.preset == "local"
    if seed in WIDE:
        return True
    if peers == 2:
        return brisk or seed % 7 == 0
    if peers == 3:
        return (seed % 5 == 1 or seed % 20 in (0, 14) or seed % 40 == 27) and (brisk or seed % 4 == 0)
    if peers == 64:
        return seed == 114
    if peers > 8:
        return not plan.agree and plan.conditions.late <= 1.0 and crosscuts(plan) > 0 and seed % 5 in (1, 2)
    divisor, cut = DIVISORS[peers]
    if plan.agree:
        return peers < 6 and seed % (5 * divisor) == 0
    if plan.conditions.late > 1.0:
        return peers == 4 and seed % 8 == 3
    if crosscuts(plan) and brisk and seed % cut == 1:
        return True
    return seed % divisor == 0 and (brisk or seed % 9 == 0)


CHOICE = [seed for seed in range(FIRST) if often(seed)]
SEEDS = [seed if seed in CHOICE[::8] else pytest.param(seed, marks=pytest.mark.long) for seed in range(FIRST)]


@pytest.mark.long
def test_long_exchanges_do_not_keep_peers_with_the_same_partner():
    """A peer that finds all others busy returns to its last partner, and is then in step with it (seed 2490)."""
    slow = Conditions(latency=0.15, jitter=0.5, bandwidth=1.25e6, job=0.04)
    plan = Plan(peers=4, size=24_876, conditions=slow, before=slow, every=4, window=8, chaos=60.0, calm=0.0)
    again = []
    for seed in range(4):
        cluster, met = Cluster(seed, plan), defaultdict(list)
        cluster.listeners.append(
            lambda host, event, met=met: met[host].append(event.partner) if isinstance(event, ExchangeEnded) else None
        )
        cluster.run()
        again += [one == other for partners in met.values() for one, other in pairwise(partners)]
    assert len(again) > 300 and sum(again) < 0.25 * len(again)  # a third at random


@pytest.mark.campaign("T1")
@pytest.mark.parametrize("seed", SEEDS)
def test_seed_holds_every_invariant(seed, record_property):
    outcome = play_seed(seed)
    record_property("seeds", 1)
    record_property("events", outcome.events)
    # One of two peers may begin to train late, lose half of its messages, and leave for good (seeds 1438 and 1526).
    alone = outcome.up == 1 and bool(Plan.draw(seed).lateness)
    assert outcome.rounds > 10 and (alone or outcome.exchanges > 1) and outcome.mixed >= outcome.exchanges


@pytest.mark.campaign("T1")
@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.long) for seed in (928, 974)), *FAILED])
def test_seed_that_failed_once_holds_every_invariant(seed, record_property):
    """974: a lost exchange was asked about its doubts 8 s later. 2397: losses gave a joiner a patience of minutes.
    2491: three sides, one of them a single peer, need 50 periods. 2573: the last checkpoint of a network was torn, and
    nothing could have restored it. 772: a side began to train after it had named its line. 855, 921, 948: training
    began from an old model beside a greater side. 928: news of the network's clock had not reached the source of a
    re-sync."""
    record_property("seeds", 1)
    run_seed(seed)


@pytest.mark.campaign("T1")
@pytest.mark.long
@pytest.mark.parametrize("first", range(500, 20_000, PART))
def test_hundred_more_seeds_hold_every_invariant(first, record_property):
    record_property("seeds", PART)
    assert play(range(first, first + PART)).failed == {}


def test_plans_reach_the_promised_sizes_and_faults():
    plans = [Plan.draw(seed) for seed in CHOICE]
    assert len(plans) == 500
    assert {plan.peers for plan in plans} >= {2, 3, 4, 5, 6, 8, 11, 12, 16, 64}
    assert sum(plan.peers >= 8 for plan in plans) >= 30 and sum(plan.peers == 64 for plan in plans) == 2
    assert {plan.conditions.loss for plan in plans} == {0.0, 0.02, 0.1, 0.3, 0.5}
    assert {plan.conditions.late for plan in plans} == {0.1, 1.0, 30.0}
    assert {plan.preset for plan in plans} == {"local", "lan", "wan"}
    assert sum(plan.conditions.duplicate > 0 for plan in plans) > 200
    assert sum(plan.conditions.reorder > 0 for plan in plans) > 200
    assert sum(plan.agree for plan in plans) > 40 and {plan.peers for plan in plans if plan.agree} >= {8, 16, 64}
    goings = [sum(fault.kind in ("crash", "torn", "leave") for fault in plan.script) / plan.peers for plan in plans]
    rates = [60.0 * share / plan.chaos for share, plan in zip(goings, plans, strict=True)]
    assert sum(rate >= 0.2 for rate in rates) > 250, "churn of 20 % a minute and more"
    assert sum(len(set(plan.slowness)) > 1 for plan in plans) > 100
    assert sum(not plan.script for plan in plans) < 20
    assert sum(bool(plan.script) and plan.script[0].at < plan.forming for plan in plans) > 80
    faults = [fault for plan in plans for fault in plan.script]
    assert len(faults) > 1500 and {fault.kind for fault in faults} == {*KINDS, "join", "replay"}
    # In a ring of three all reach all. A bridge cuts hosts off only if its island has two or more, but not all.
    assert sum(fault.kind == "ring" for plan in plans if plan.peers >= 4 for fault in plan.script) >= 20
    bridges = [(plan.peers, len(fault.hosts)) for plan in plans for fault in plan.script if fault.kind == "bridge"]
    assert sum(1 < island < peers for peers, island in bridges) >= 20
    assert sum(plan.dead for plan in plans) >= 15
    assert sum(plan.moments > 0 for plan in plans) > 100
    assert any(fault.kind == "pause" and fault.lasts == 60.0 for fault in faults)
    assert any(fault.kind == "crash" and not fault.disk for fault in faults)
    gone = [fault for fault in faults if fault.kind in ("crash", "leave") and fault.lasts == FOREVER]
    assert any(0 in fault.hosts for fault in gone) and any(0 not in fault.hosts for fault in gone)


def test_hosts_keep_their_speeds_through_faults_and_h_follows():
    cluster = Cluster(5, Plan.draw(5))
    cluster.run()
    hosts = [host for host in cluster.network.hosts if host.peer is not None]
    assert [host.step_slowness for host in hosts] == [1.0, 0.5, 2.0] == list(Plan.draw(5).slowness)
    assert [host.running.view.every for host in hosts] == [4, 8, 2]


def test_most_cuts_last_longer_than_a_suspicion():
    """Each fault ends its own cut only, so only the end of all faults can end one early."""
    plans = [Plan.draw(seed) for seed in CHOICE]
    long = [(plan, fault) for plan in plans for fault in plan.script if fault.kind in CUTS and fault.lasts >= 7.0]
    whole = sum(fault.at + fault.lasts <= plan.forming + plan.chaos for plan, fault in long)
    assert len(long) > 150 and whole > 0.7 * len(long)
