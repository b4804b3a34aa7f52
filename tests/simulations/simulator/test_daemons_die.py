"""Daemons die while their training processes live on. No training is lost."""

import numpy as np
import pytest

from gossipdp.protocol.events import ExchangeEnded, TookOver
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions


class Dying(Cluster):
    """Hosts that train. The only checkpoint of each is of step 0 or close to it."""

    def __init__(self, peers: int, *, seed: int = 3) -> None:
        super().__init__(seed, Plan(peers=peers, size=8192 + 300, conditions=Conditions(), every=5, window=3))
        self.heard: list[tuple[float, int, object]] = []
        for host in self.network.hosts:
            self.restart(host)
        self.network.run(3.0)
        for host in self.network.hosts:
            self.save(host)
        self.network.run(40.0)

    def _heard(self, host, event):
        super()._heard(host, event)
        self.heard.append((self.network.now, host.index, event))

    def of(self, kind, since=0.0):
        return [event for at, _, event in self.heard if at >= since and isinstance(event, kind)]

    def die(self) -> float:
        """Kill all daemons at once."""
        for host in self.network.hosts:
            self.stop(host)
        return self.network.now

    def live(self, index=0):
        return self.trainers[index].x.astype(np.float64)


@pytest.mark.parametrize("peers", [1, 3])
def test_all_daemons_die_and_come_back__every_live_process_keeps_all_that_it_trained(peers):
    cluster = Dying(peers)
    network, trainers = cluster.network, cluster.trainers
    clocks = [trainers[host.index].clock for host in network.hosts]
    assert min(clocks) > 100 and max(host.checkpoint.clock for host in network.hosts) < 50
    died = cluster.die()
    network.run(died + 2.0)
    for host in network.hosts:
        cluster.restart(host)
    before = [trainers[host.index].steps for host in network.hosts]
    network.run(died + 20.0)
    assert [trainers[host.index].kept for host in network.hosts] == [1] * peers
    assert len(cluster.of(TookOver, died)) == peers
    for host, clock, steps in zip(network.hosts, clocks, before, strict=True):
        trainer = trainers[host.index]
        assert trainer.steps > steps + 50, "it never waits"
        assert host.peer.view.clock >= clock + (trainer.steps - steps), "every step counts"
        cluster.books.check(host, range(host.algorithm.ledger.chunks))


def test_daemon_dies_while_the_others_train_on__the_live_process_goes_on_with_its_own_parameters():
    cluster = Dying(3)
    network, [host, *_] = cluster.network, cluster.network.hosts
    cluster.stop(host)
    network.run(network.now + 2.0)
    cluster.restart(host)
    back, steps = network.now, cluster.trainers[0].steps
    network.run(back + 12.0)
    assert cluster.trainers[0].kept == 1 and cluster.trainers[0].steps > steps
    assert [event.steps > 0 for event in cluster.of(TookOver, back)] == [True]
    exchanged = [index for at, index, event in cluster.heard if at > back and isinstance(event, ExchangeEnded)]
    assert exchanged.count(0) > 5 and not host.peer.view.apart


def test_live_process_far_behind_the_network__the_networks_model_is_loaded():
    cluster = Dying(3)
    network, [host, *_] = cluster.network, cluster.network.hosts
    host.step_slowness = 1000.0
    cluster.stop(host)
    network.run(network.now + 30.0)
    cluster.restart(host)
    network.run(network.now + 10.0)
    assert cluster.trainers[0].kept == 0 and cluster.trainers[0].session > 0
    others = np.mean([each.algorithm.ledger.a for each in network.hosts[1:]], axis=0)
    assert float(np.abs(cluster.live() - others).max()) < 1.0
