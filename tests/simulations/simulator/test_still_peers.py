"""A training process makes no rounds (an evaluation, a debugger) while the network goes on."""

import numpy as np
import pytest
from numpy.linalg import norm

from gossipdp.protocol.course.rules import SPARE_ROUNDS
from gossipdp.protocol.events import ExchangeStarted, ResyncEnded, StateJudged
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

DRIFT = np.float32(0.02)
"""movement of everyone's optimum in 0.8 s"""


class Drifting(Cluster):
    def __init__(self, peers: int, first: int) -> None:
        plan = Plan(peers=peers, size=8192 + 300, conditions=Conditions(), every=4, window=2)
        super().__init__(7, plan)
        self.judged: list[StateJudged] = []
        self.listeners.append(lambda _, event: self.judged.append(event) if isinstance(event, StateJudged) else None)
        for host in self.network.hosts[:first]:
            self.network.at(min(host.index, 1.0), "start", None, lambda host=host: self.restart(host))
        self.network.run(15.0)
        for beat in range(1, 400):
            self.network.at(15.0 + 0.8 * beat, "drift", None, self._drift)
        self.network.run(30.0)

    def _drift(self) -> None:
        for trainer in self.trainers.values():
            trainer.optimum = trainer.optimum + DRIFT

    def behind(self, host) -> float:
        others = [
            other.algorithm.ledger.a for other in self.network.hosts if other.peer is not None and other is not host
        ]
        return float(np.sqrt(np.mean((host.algorithm.ledger.a - np.mean(others, axis=0)) ** 2)))


def test_idle_peer_is_moved_on_by_the_others() -> None:
    cluster = Drifting(4, 4)
    still = cluster.network.hosts[3]
    still.step_slowness = 1e9
    cluster.network.run(150.0)
    moved = 150 * float(DRIFT)
    assert cluster.behind(still) < 0.2 * moved


def test_state_of_an_idle_peer_is_plausible() -> None:
    cluster = Drifting(3, 2)
    still, joiner = cluster.network.hosts[1:]
    still.step_slowness = 1e9
    cluster.network.run(230.0)
    cluster.restart(joiner)
    cluster.network.run(260.0)
    assert joiner.running.view.ready and [event.plausible for event in cluster.judged if not event.plausible] == []


@pytest.mark.parametrize("peers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_idle_peer_keeps_up_and_its_momentum_does_not_grow(peers: int) -> None:
    cluster = Drifting(peers, peers)
    still = cluster.network.hosts[1]
    cluster.network.run(60.0)
    before, usual = norm(still.algorithm.ledger.v), cluster.behind(still)
    still.step_slowness = 1e9
    cluster.network.run(160.0)
    assert cluster.behind(still) < max(3 * usual, 2 * float(DRIFT))
    assert norm(still.algorithm.ledger.v) < 1.5 * before


@pytest.mark.long
def test_peer_after_the_end_of_training__makes_no_exchanges_and_fetches_the_model_at_times() -> None:
    cluster = Drifting(3, 3)
    idle = cluster.network.hosts[1]
    events: list[object] = []
    cluster.network.run(60.0)
    cluster.kill_trainer(idle)
    cluster.network.run(64.0)  # the last round's exchanges are over
    cluster.listeners.append(lambda host, event: events.append(event) if host is idle else None)
    cluster.network.run(160.0)
    assert not any(isinstance(event, ExchangeStarted) for event in events)
    fetched = [event.complete for event in events if isinstance(event, ResyncEnded)]
    assert 8 < len(fetched) < 14 and all(fetched)
    assert cluster.behind(idle) < (SPARE_ROUNDS + 2) * float(DRIFT)


GONE = ["left", "crashed", "stands still"]


def go(network, leader, how):
    if how == "left":
        network.command(leader, "leave", lambda peer: peer.leave(network.now))
    elif how == "crashed":
        network.stop(leader)
    else:
        leader.step_slowness = 1e9


@pytest.mark.parametrize("how", GONE)
def test_without_the_fastest_the_clock_goes_on_within_a_few_rounds(how):
    every, step = 4, 0.2
    cluster = Cluster(2, Plan(peers=4, size=300, conditions=Conditions(), every=every, window=2, step_time=step))
    for host in cluster.network.hosts:
        cluster.network.at(0.1 * host.index, "start", None, lambda host=host: cluster.restart(host))
    cluster.network.run(10.0)
    leader, *others = cluster.network.hosts
    leader.step_slowness = 0.5
    cluster.network.run(40.0)
    stood = leader.running.view.clock
    if how == "crashed":
        cluster.stop(leader)
    else:
        go(cluster.network, leader, how)
    cluster.network.run(40.0 + 6 * every * step)
    clock = others[0].running.view.clock
    assert clock > stood and others[0].running.view.steps < stood / 1.5
    cluster.network.run(60.0 + 6 * every * step)
    gained = others[0].running.view.clock - clock
    assert gained == pytest.approx(20.0 / step, abs=2 * every), "by the steps of the fastest who is left"
    assert max(host.running.view.clock for host in others) - min(host.running.view.clock for host in others) <= every
