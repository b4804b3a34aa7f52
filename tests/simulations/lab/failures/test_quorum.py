"""DiLoCo with a quorum: who is waited for, who is left out, and who is taken in again."""

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.failures.elastic import WaitingDiLoCo
from simulations.lab.failures.hosts import Hosts
from simulations.lab.failures.quorum import QuorumDiLoCo, asked_no_more
from tests.simulations.lab.failures.runs_of_events import NARROW, gone, paused, ran, slow


def test_a_quorum_waits_for_the_living_and_not_for_the_silent():
    those = Hosts(4, Link(), [gone(1, 50.0), paused(2, 52.0, 56.0), paused(3, 70.0, 90.0)])
    assert asked_no_more(those, 0, 53.0) == 53.0 + 60.0
    assert asked_no_more(those, 1, 53.0) == 55.0 and asked_no_more(those, 1, 80.0) == 80.0
    assert asked_no_more(those, 2, 53.0) == 113.0, "a pause of 4 s is not silence"
    assert asked_no_more(those, 3, 53.0) == 75.0


def test_a_quorum_goes_on_without_a_dead_host():
    method = QuorumDiLoCo()
    lab = ran(method, gone(2, 102.0))
    assert method.members == [0, 1, 3]
    assert lab.steps.tolist() == [300, 300, 100, 300]
    assert lab.lost.tolist() == [0.0, 0.0, 2.0, 0.0] and lab.idle_shares() == pytest.approx([0.0] * 4)


def test_a_host_that_dies_just_before_the_quorum_is_waited_for_until_it_is_silent_for_5_s():
    lab = ran(QuorumDiLoCo(), gone(2, 108.0))
    # The quorum of 110 forms at 113, so 3 s pass idle. The last round has 7 steps.
    assert lab.steps.tolist() == [297, 297, 100, 297]


def test_a_paused_host_is_left_out_and_copies_the_state_when_it_is_back():
    method = QuorumDiLoCo()
    lab = ran(method, paused(2, 104.0, 157.0))
    # It has 6 steps left, asks at 163, and is taken in at the quorum of 170.
    assert lab.steps.tolist() == [300, 300, 100 + 130, 300]
    assert lab.lost.tolist() == [0.0, 0.0, 10.0, 0.0]
    assert lab.idle_shares() == pytest.approx([0.0, 0.0, 7.0 / 247.0, 0.0])
    assert method.members == [0, 1, 2, 3] and torch.equal(lab.x[2], method.anchor)


def test_all_wait_for_the_copy_of_a_host_that_arrives():
    method = QuorumDiLoCo()
    lab = ran(method, gone(2, 102.0, 137.0), link=Link(bandwidth=16.0))
    # Nine rounds of 10 + 18/16 s and four of 10 + 16/16 end at 144.125. The copy of 320 bytes takes 20 s.
    assert 9 * 11.125 < 102.0 and 9 * 11.125 + 3 * 11.0 + 10.0 > 137.0 > 9 * 11.125 + 3 * 11.0
    # 135.875 s are left: twelve rounds, and one step with its collective.
    assert lab.steps.tolist() == [130 + 121, 130 + 121, 90 + 121, 130 + 121]
    assert lab.received[2] == pytest.approx(9 * 18 + 320 + 13 * 18)
    assert method.members == [0, 1, 2, 3] and torch.equal(lab.x[2], method.anchor)


def test_a_collective_that_a_host_left_fails_after_a_minute_and_the_round_is_undone():
    method = QuorumDiLoCo()
    lab = ran(method, gone(2, 11.0), link=NARROW, seconds=120.0)
    # The collective of 10 s would have ended at 11.8. It fails at 71; three hosts go on, 1.6 s a collective.
    assert lab.steps.tolist() == [40 + 1, 40 + 1, 0, 40 + 1]
    assert lab.lost.tolist() == [10.0] * 4
    assert method.members == [0, 1, 3]


def test_a_slow_link_slows_the_collective_of_all():
    lab = ran(QuorumDiLoCo(), slow(2, 0.0), link=NARROW)
    # 18 bytes at one byte a second.
    assert lab.steps.tolist() == [10 * 10 + 2] * 4


def test_without_absences_a_quorum_is_all_hosts():
    quorum, waiting = (ran(kind(warmup_steps=20), slow(2, 95.0), link=NARROW) for kind in (QuorumDiLoCo, WaitingDiLoCo))
    assert torch.equal(quorum.x, waiting.x) and quorum.busy.tolist() == waiting.busy.tolist()
    assert quorum.received.tolist() == waiting.received.tolist()


def test_the_warm_start_has_short_rounds_and_lives_through_a_death():
    # The second quorum is asked for at 10 and forms at 12.
    assert ran(QuorumDiLoCo(warmup_steps=20), gone(2, 7.0), seconds=120.0).steps.tolist() == [118, 118, 5, 118]
