"""When computing and transfers end on hosts with events."""

import math
from dataclasses import replace

import numpy as np
import pytest

from peers.plan.timeline import Link
from simulations.lab.core import Lab, Setting
from simulations.lab.failures.hosts import Hosts
from simulations.lab.failures.lab import HostLab, hosted
from tests.simulations.lab.baselines.toy_problems import LINE, SGD
from tests.simulations.lab.failures.runs_of_events import SETTING, gone, paused, slow

LINK = Link(bandwidth=100.0, latency=0.5)


def hosts(*events):
    return Hosts(4, LINK, events)


def test_nothing_happens_without_events():
    calm = hosts()
    assert calm.there(7.0) == [0, 1, 2, 3] and calm.afflicted == set()
    assert calm.compute(2, 3.0, 10.0) == 13.0
    assert calm.transfer((0, 1), 3.0, 200.0, 4) == 3.0 + 4 * 0.5 + 2.0
    assert calm.death(0, 0.0) == calm.silence(0, 0.0, 1.0) == math.inf
    assert calm.present_seconds(0, 2.0, 9.0) == 7.0


def test_a_pause_postpones_what_the_host_does_and_nothing_else():
    those = hosts(paused(1, 5.0, 25.0))
    assert those.compute(1, 0.0, 10.0) == 30.0 and those.compute(0, 0.0, 10.0) == 10.0
    assert those.compute(1, 0.0, 5.0) == 5.0 and those.compute(1, 10.0, 1.0) == 26.0
    assert those.transfer((0, 1), 4.0, 200.0) == pytest.approx(4.0 + 0.5 + 20.0 + 2.0)
    assert those.transfer((0, 2), 4.0, 200.0) == 6.5
    assert [those.is_there(1, at) for at in (4.9, 5.0, 24.9, 25.0)] == [True, False, False, True]
    assert those.back(1, 7.0) == 25.0 and those.back(1, 30.0) == 30.0
    assert those.present_seconds(1, 0.0, 30.0) == 10.0


def test_what_a_dead_host_was_doing_never_ends_and_its_successor_begins_anew():
    those = hosts(gone(1, 5.0, 25.0))
    assert those.compute(1, 0.0, 10.0) == math.inf and those.compute(1, 10.0, 1.0) == math.inf
    assert those.compute(1, 0.0, 5.0) == 5.0 and those.compute(1, 25.0, 10.0) == 35.0
    assert those.transfer((0, 1), 4.0, 200.0) == math.inf and those.transfer((0, 1), 25.0, 200.0) == 27.5
    assert [those.death(1, at) for at in (0.0, 5.0, 24.0, 25.0)] == [5.0, 5.0, 5.0, math.inf]


def test_the_slowest_link_bounds_a_transfer_also_if_it_changes_on_the_way():
    those = hosts(slow(1, 10.0, 20.0))
    assert those.transfer((0, 1), 10.0, 50.0, 0) == 15.0 and those.transfer((0, 2), 10.0, 50.0, 0) == 10.5
    # 1 s at 100 bytes a second, 10 s at 10, and the last 100 bytes in 1 s.
    assert those.transfer((0, 1), 9.0, 300.0, 0) == 21.0
    assert those.compute(1, 10.0, 3.0) == 13.0


def test_only_long_absences_and_deaths_are_silence():
    those = hosts(paused(1, 10.0, 13.0), paused(1, 50.0, 80.0), gone(2, 30.0, 31.0))
    assert those.silence(1, 0.0, 2.0) == 10.0 and those.silence(1, 0.0, 5.0) == 50.0
    assert those.silence(1, 60.0, 5.0) == 50.0 and those.silence(1, 80.0, 5.0) == math.inf
    assert those.silence(2, 0.0, 5.0) == 30.0


@pytest.mark.parametrize(
    "events", [[gone(4, 1.0)], [paused(0, 5.0, 5.0)], [paused(0, 1.0, 9.0), gone(0, 8.0)]], ids=["host", "end", "twice"]
)
def test_impossible_events_are_refused(events):
    with pytest.raises(ValueError, match="host"):
        hosts(*events)


def test_learning_rate_follows_the_clock_from_the_start_of_the_run():
    lab = HostLab(LINE, SETTING)
    lab.set_clock(60.0)
    lab.step([0, 1, 2, 3])
    assert lab.progress == 0.0 and lab.lr == SETTING.lr
    lab.start()
    lab.set_clock(180.0)
    assert lab.progress == pytest.approx(0.5)
    lab.elapse(1000.0)
    assert lab.seconds == 300.0 and lab.lr == pytest.approx(0.1 * SETTING.lr)


def test_idle_and_lost_time_are_shares_of_the_time_that_a_host_is_there():
    lab = HostLab(LINE, replace(SETTING, events=(gone(1, 100.0), paused(2, 0.0, 200.0))))
    for _ in range(50):
        lab.step([0, 1, 2])
    lab.waste(0, 25.0)
    lab.lose([1], 20.0)
    lab.set_clock(300.0)
    assert lab.idle_shares() == pytest.approx([0.75, 0.5, 0.5, 1.0])
    assert lab.lost_shares() == pytest.approx([25 / 300, 0.2, 0.0, 0.0])


def test_a_state_is_copied_with_the_moments():
    lab = HostLab(LINE, SETTING)
    lab.step([3])
    lab.restore(lab.state(3), [0, 1])
    assert (lab.x[[0, 1]] == lab.x[3]).all() and not (lab.x[2] == lab.x[3]).all()
    assert np.array_equal(lab.steps, [0, 0, 0, 1])


def test_a_lab_without_hosts_is_refused():
    with pytest.raises(TypeError):
        hosted(Lab(LINE, SGD))
    with pytest.raises(TypeError):
        HostLab(LINE, Setting(peers=2, every=1, rounds=1))
