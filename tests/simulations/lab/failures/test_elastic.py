"""DDP and DiLoCo under torchrun: what a failure, a pause, a slow link and an arrival cost."""

import math

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines.synchronous import Ddp, FourBitDiLoCo
from simulations.lab.core import Setting
from simulations.lab.failures.elastic import ElasticDdp, WaitingDiLoCo, change, restart
from simulations.lab.failures.hosts import Hosts
from simulations.lab.failures.quorum import QuorumDiLoCo
from tests.simulations.lab.baselines.toy_problems import LINE, same
from tests.simulations.lab.baselines.toy_problems import ran as ran_calmly
from tests.simulations.lab.failures.runs_of_events import NARROW, gone, paused, ran, slow

CALM = Setting(peers=4, every=10, rounds=30, inner="sgd", lr=0.05, decay=False)


def hosts(*events):
    return Hosts(4, Link(bandwidth=100.0), events)


# -- torchrun --------------------------------------------------------------------------------------------------------


def test_the_next_change_is_a_failure_of_a_member_or_an_arrival_of_another():
    those = hosts(gone(1, 50.0, 90.0))
    assert change(those, [0, 1, 2, 3], 10.0) == (50.0, True)
    assert change(those, [0, 2, 3], 60.0) == (90.0, False)
    assert change(those, [0, 1, 2, 3], 95.0) == (math.inf, False)


def test_a_rendezvous_waits_for_a_missing_host_and_a_full_one_does_not():
    assert restart(hosts(gone(1, 50.0)), [0, 1, 2, 3], 40.0, 65.0, 1e3) == (125.0, [0, 2, 3], [0, 2, 3])
    assert restart(hosts(), [0, 1, 2, 3], 40.0, 65.0, 1e3) == (95.0, [0, 1, 2, 3], [0, 1, 2, 3])


def test_a_host_that_arrives_during_a_start_stops_it_and_copies_the_state():
    those = hosts(gone(1, 50.0, 110.0))
    # Noticed at 65, ready at 125 but for the arrival at 110: all start again, and 1,000 bytes travel for 10 s.
    assert restart(those, [0, 1, 2, 3], 40.0, 65.0, 1e3) == (150.0, [0, 1, 2, 3], [0, 2, 3])


def test_a_host_replaced_before_its_death_was_noticed_holds_nothing():
    assert restart(hosts(gone(1, 50.0, 60.0)), [0, 1, 2, 3], 40.0, 65.0, 1e3) == (105.0, [0, 1, 2, 3], [0, 2, 3])


def test_a_second_failure_during_a_start_is_noticed_and_begins_it_anew():
    those = hosts(gone(1, 50.0), gone(2, 100.0))
    assert restart(those, [0, 1, 2, 3], 40.0, 65.0, 1e3) == (175.0, [0, 3], [0, 3])


# -- DDP -------------------------------------------------------------------------------------------------------------


def test_elastic_ddp_without_events_is_ddp():
    lab = ran(ElasticDdp(half=False), decay=False, link=Link(latency=0.1))
    assert lab.steps.tolist() == [300] * 4 and lab.busy.tolist() == [300.0] * 4
    calm = ran_calmly(Ddp(), CALM)
    assert same(lab.x, calm.x)
    slower = ran(ElasticDdp(), link=NARROW)
    # 2 (1 - 1/4) 40 bytes take 6 s after the first third of a step; 47 steps of 19/3 s fit.
    assert slower.steps.tolist() == [47] * 4
    assert slower.idle_shares() == pytest.approx([1.0 - 47 / 300] * 4)


def test_a_death_costs_ddp_detection_rendezvous_start_and_the_steps_since_the_checkpoint():
    lab = ran(ElasticDdp(), gone(2, 100.0))
    # Checkpoints at 30, 60, 90; 15 + 30 + 30 s without a step; 125 s with three hosts.
    assert lab.steps.tolist() == [225, 225, 100, 225]
    assert lab.lost == pytest.approx([10.0] * 4)
    assert lab.idle_shares() == pytest.approx([0.25, 0.25, 0.0, 0.25])


def test_a_restart_of_ddp_undoes_the_steps():
    short = ran(ElasticDdp(), seconds=90.0, decay=False)
    lab = ran(ElasticDdp(), gone(2, 100.0), seconds=120.0, decay=False)
    assert same(lab.x[0], short.x[0], 0.0)


def test_ddp_waits_for_a_pause_and_loses_no_step():
    lab = ran(ElasticDdp(), paused(2, 100.0, 220.0))
    assert lab.steps.tolist() == [180] * 4 and not lab.lost.any()
    assert lab.idle_shares() == pytest.approx([0.4, 0.4, 0.0, 0.4])


def test_a_slow_link_slows_all_of_ddp():
    lab = ran(ElasticDdp(half=False), slow(2, 100.0), link=Link(bandwidth=300.0))
    # 120 bytes take 0.4 s, behind the backward pass; then 4 s after the first third.
    assert lab.steps.tolist() == [100 + 46] * 4


def test_an_arrival_stops_ddp_again_and_copies_the_checkpoint():
    lab = ran(ElasticDdp(), gone(2, 100.0, 200.0), link=Link(bandwidth=24.0))
    # 60 bytes after a third of a step: 17/6 s. With three hosts 160/3 bytes, 23/9 s, from 175 on. All stop at 200,
    # start for 30 s, and wait 10 s for 240 bytes.
    assert lab.steps.tolist() == [35 + 9 + 21, 35 + 9 + 21, 35 + 21, 35 + 9 + 21]
    # The last checkpoints were after 33 steps and at 175.
    assert lab.lost.tolist() == [2.0 + 9.0, 2.0 + 9.0, 2.0, 2.0 + 9.0]
    assert lab.received[2] == pytest.approx(56 * 60 + 240)
    assert torch.equal(lab.x[2], lab.x[0])


# -- DiLoCo that waits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WaitingDiLoCo, QuorumDiLoCo])
def test_diloco_without_events_is_diloco(kind):
    mine, theirs = kind(mu=0.6), FourBitDiLoCo(mu=0.6)
    lab, other = ran(mine, decay=False), ran_calmly(theirs, CALM)
    assert same(mine.anchor, theirs.anchor) and torch.equal(lab.x[0], mine.anchor)
    assert lab.received == pytest.approx(other.received) and lab.seconds == other.seconds


@pytest.mark.parametrize("kind", [WaitingDiLoCo, QuorumDiLoCo])
def test_the_last_round_is_as_long_as_the_time_that_is_left(kind):
    # 2 (1 - 1/4) 12 bytes in 1.8 s: 25 rounds of 11.8 s, and one of 3 s.
    lab = ran(kind(), link=NARROW)
    assert lab.steps.tolist() == [253] * 4
    assert lab.seconds == 300.0 and lab.lost.tolist() == [0.0] * 4


def test_a_death_costs_waiting_diloco_its_round_and_a_restart():
    lab = ran(WaitingDiLoCo(), gone(2, 105.0))
    # The round from 100 on is lost: 10 s of three hosts, 5 of the dead one. All begin again at 105 + 15 + 30 + 30.
    assert lab.steps.tolist() == [220, 220, 100, 220]
    assert lab.lost.tolist() == [10.0, 10.0, 5.0, 10.0]
    assert lab.idle_shares() == pytest.approx([70 / 300, 70 / 300, 0.0, 70 / 300])


def test_waiting_diloco_waits_for_a_pause():
    lab = ran(WaitingDiLoCo(), paused(2, 105.0, 205.0))
    assert lab.steps.tolist() == [200] * 4 and not lab.lost.any()


def test_the_outer_step_after_a_death_is_the_mean_of_those_left():
    method = WaitingDiLoCo(alpha=1.0, mu=0.0)
    lab = ran(method, gone(2, 105.0), seconds=190.0)
    assert method.members == [0, 1, 3] and lab.steps.tolist() == [110, 110, 100, 110]
    assert method.holders(lab) == [0, 1, 3]
    assert LINE.evaluate(method.model(lab)).loss < LINE.evaluate(LINE.start(0)).loss


def test_waiting_diloco_takes_a_host_in_that_arrives():
    method = WaitingDiLoCo()
    lab = ran(method, gone(2, 105.0, 205.0))
    # Training from 180 to 200; the round from 200 on is lost at 205; all four begin at 235.
    assert method.members == [0, 1, 2, 3]
    assert lab.steps.tolist() == [100 + 20 + 65] * 2 + [100 + 65] + [185]
    assert torch.equal(lab.x[2], method.anchor)
