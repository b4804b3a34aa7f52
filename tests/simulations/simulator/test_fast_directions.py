"""Whole peers whose optimizer undoes corrections, on links that fill most of a round (algorithms 3b and 3c)."""

from dataclasses import replace

import numpy as np
import pytest

from gossipdp.algorithms.swings import Swings
from gossipdp.protocol.rounds.runaway import Runaway
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

QUIET = 0.05
"""share of a trainer's usual noise"""


class Fast(Cluster):
    """Peers that are `latency` seconds apart. A round lasts a second."""

    def __init__(self, peers: int, latency: float) -> None:
        plan = Plan(peers=peers, size=8192 + 300, conditions=Conditions(), every=20, window=2, step_time=0.05)
        super().__init__(3, plan, latency=lambda one, other: latency)
        for host in self.network.hosts:
            self.network.at(min(host.index, 1.0), "start", None, lambda host=host: self.restart(host))

    def error(self, until: float) -> float:
        """The largest error of a parameter after steps with momentum from second 15 on."""
        self.network.run(15.0)
        for trainer in self.trainers.values():
            trainer.config = replace(trainer.config, rate=1 / 64, momentum=0.9)
            trainer._noise *= np.float32(QUIET)
        self.network.run(until)
        return max(float(np.abs(trainer.x - trainer.optimum).max()) for trainer in self.trainers.values())


@pytest.mark.parametrize(("peers", "latency"), [(2, 0.07), (2, 0.12), (3, 0.07)])
def test_training_that_takes_corrections_back_stays_at_its_optimum(peers: int, latency: float) -> None:
    cluster = Fast(peers, latency)
    assert cluster.error(40.0) < 0.05
    hosts = [host.running for host in cluster.network.hosts]
    assert all(host._replica.pacing.fill > 0.5 for host in hosts)
    assert max(host._replica.rounds.gain for host in hosts) > 0.2


def test_the_same_training_explodes_if_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Swings, "measure", lambda *given: 0.0)
    monkeypatch.setattr(Runaway, "round_done", lambda *given, **stated: False)
    assert Fast(2, 0.07).error(40.0) > 1.0
