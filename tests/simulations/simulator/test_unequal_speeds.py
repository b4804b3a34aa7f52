"""Hosts of unequal speed make rounds equally often, and none falls behind (algorithms section 8)."""

from dataclasses import replace

import numpy as np
import pytest

from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

STEP = 0.1
"""movement of every parameter in a training step, once all move in one direction"""


class Unequal(Cluster):
    """Hosts with the given `slowness`. A step takes 0.05 s times the slowness."""

    def __init__(self, slowness: tuple[float, ...], latency=None, seed: int = 3, **changed: object) -> None:
        self.changed = changed
        plan = Plan(peers=len(slowness), size=8192 + 300, conditions=Conditions(), every=20, window=2, step_time=0.05)
        super().__init__(seed, plan, latency=latency)
        for host, slow in zip(self.network.hosts, slowness, strict=True):
            host.step_slowness = slow
            self.network.at(min(host.index, 1.0), "start", None, lambda host=host: self.restart(host))

    def _config(self):
        return replace(super()._config(), **self.changed)

    def march(self) -> None:
        """From now on all train towards a point that is too far to reach."""
        for trainer in self.trainers.values():
            trainer.config = replace(trainer.config, rate=1e-6)
            trainer.optimum = np.full_like(trainer.optimum, STEP / 1e-6)

    def rates(self, begin: float, end: float) -> list[float]:
        """Rounds a second of each host."""
        self.network.run(begin)
        before = [host.running.view.model_rounds for host in self.network.hosts]
        self.network.run(end)
        after = [host.running.view.model_rounds for host in self.network.hosts]
        return [(late - early) / (end - begin) for early, late in zip(before, after, strict=True)]


def test_speeds_of_1_2_4_make_rounds_equally_often() -> None:
    cluster = Unequal((4.0, 2.0, 1.0))
    rates = cluster.rates(60.0, 120.0)
    assert [host.running.view.every for host in cluster.network.hosts] == [
        pytest.approx(every, rel=0.2) for every in (10, 20, 40)
    ]
    assert max(rates) < 1.3 * min(rates)


def test_peers_of_one_speed_keep_h_as_configured() -> None:
    cluster = Unequal((1.0, 1.0, 1.0, 1.0))
    cluster.network.run(90.0)
    assert {(host.running.view.every, host.running._replica.pacing.speed) for host in cluster.network.hosts} == {
        (20, 1.0)
    }


@pytest.mark.parametrize(("slow", "seed"), [(10.0, 3), (30.0, 3), (30.0, 2)])
def test_far_slower_peer_makes_rounds_as_often_and_is_not_left_behind(slow: float, seed: int) -> None:
    """It receives the progress that it does not make itself, in a hundred rounds as in one.

    Counted by its speed, at least a sixteenth, its rounds of one step were too long, and the clipping bound too narrow.
    """
    cluster = Unequal((slow, 1.0), seed=seed)
    cluster.network.run(130.0)
    cluster.march()
    rates = cluster.rates(150.0, 250.0)
    behind, ahead = (float(np.mean(host.algorithm.ledger.a[:8192])) for host in cluster.network.hosts)
    assert max(rates) < 1.5 * min(rates)
    assert ahead > 2000 * STEP and abs(ahead - behind) < 20 * STEP


@pytest.mark.long
def test_two_far_places_of_unequal_speed_make_rounds_equally_often() -> None:
    """Partners are mostly near and equally fast. Members whose progress a peer hears of are anywhere."""
    slowness = (10.0, 10.0, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0)
    cluster = Unequal(slowness, lambda one, other: 0.0005 if one.index // 4 == other.index // 4 else 0.05)
    rates = cluster.rates(60.0, 110.0)
    assert max(rates) < 1.5 * min(rates)


def test_pause_of_all_leaves_h_as_it_was() -> None:
    """As during an evaluation: a peer that is asked reports that it does not train."""
    cluster = Unequal((10.0, 1.0))
    hosts = cluster.network.hosts
    cluster.network.run(120.0)
    slowness, every = [host.step_slowness for host in hosts], [host.running.view.every for host in hosts]
    for host in hosts:
        host.step_slowness = 400.0
    cluster.network.run(121.0)
    for host, slow in zip(hosts, slowness, strict=True):
        host.step_slowness = slow
    cluster.network.run(138.0)
    assert not any(host.running._replica.pacing._speed.own for host in hosts)
    for second in range(139, 180):
        cluster.network.run(float(second))
        assert [host.running.view.every for host in hosts] == every
    assert every[0] < 6 and all(host.running._replica.pacing._speed.own for host in hosts)


def test_peers_that_wait_for_each_other_keep_h_as_configured() -> None:
    cluster = Unequal((4.0, 2.0, 1.0), sync=True)
    cluster.network.run(60.0)
    assert {host.running.view.every for host in cluster.network.hosts} == {20}
