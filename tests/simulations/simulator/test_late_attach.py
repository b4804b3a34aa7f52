"""A training process begins long after its daemon has joined, while the network trains on (I16)."""

from dataclasses import replace

import numpy as np
import pytest

from gossipdp.protocol.events import ResyncBegan, ResyncEnded, RoundDone, SessionOpened, StateReady
from gossipdp.protocol.wire.messages import StateManifest
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

ROUND = 1.6
DRIFT = np.float32(0.3)
"""movement of everyone's optimum in a round, from soon after the last daemon has joined"""
JOINS = 30.0
NEVER = 1e9
WEATHER = {
    "local": Conditions(latency=0.001),
    "wan": Conditions(latency=0.08, jitter=0.5, bandwidth=1.25e6, loss=0.02, late=1.0),
}


class Late(Cluster):
    """All hosts train except the last, whose daemon joins at `JOINS`. With `trains` its training process starts at
    once."""

    def __init__(self, peers: int, preset: str = "local", *, trains: bool = False) -> None:
        weather = WEATHER[preset]
        plan = Plan(peers=peers, size=8192 + 300, conditions=weather, before=weather, every=8, window=2, preset=preset)
        super().__init__(7, plan if trains else replace(plan, lateness=(*[0.0] * (peers - 1), NEVER)))
        self.late = self.network.hosts[-1]
        self.gives = True
        """Manifests reach the hosts that ask for the model."""
        self.told: dict[int, list[object]] = {host.index: [] for host in self.network.hosts}
        self.listeners.append(lambda host, event: self.told[host.index].append(event))
        for host in self.network.hosts[:-1]:
            self.network.at(min(host.index, 1.0), "start", None, lambda host=host: self.restart(host))
        self.network.run(JOINS)
        self.restart(self.late)
        self.network.run(JOINS + 2 * ROUND)
        self._drift()

    def _config(self):
        # The bounds below hold for these settings. With the defaults the usual error is smaller, and a disturbance is a
        # larger multiple of it.
        config = super()._config()
        return replace(config, lr=0.7, momentum=0.7, averaging=replace(config.averaging, bits=4, late_exchanges=1))

    def _drift(self) -> None:
        for trainer in self.trainers.values():
            trainer.optimum = trainer.optimum + DRIFT
        self.network.at(self.network.now + ROUND, "drift", None, self._drift)

    def _passes(self, sender, target, message) -> bool:
        return self.gives or not isinstance(message, StateManifest)

    def cut_off(self, *hosts) -> None:
        """Cut these hosts off for longer than `apart_rounds`."""
        rest = [host for host in self.network.hosts if host not in hosts]
        self.cut = self.network.links.cut(hosts, rest)
        self.wait(15 * ROUND)

    def train(self, host) -> None:
        super().train(host)
        self.trainers[host.index].optimum = self.trainers[0].optimum

    def wait(self, seconds: float) -> None:
        self.network.run(self.network.now + seconds)

    def of(self, kind: type, host: int = -1) -> list:
        """Events of a host, by default of the last."""
        return [event for event in self.told[host % len(self.told)] if isinstance(event, kind)]

    def until(self, kind: type, within: float = 60.0) -> float:
        """Seconds until the last host emits such an event again."""
        begun, count = self.network.now, len(self.of(kind))
        while len(self.of(kind)) == count:
            assert self.network.now < begun + within, kind
            self.wait(0.01)
        return self.network.now - begun

    @property
    def others(self) -> list:
        return [host for host in self.network.hosts if host.peer is not None and host is not self.late]

    def distances(self) -> tuple[float, float]:
        """Distance of the last host's replica to the mean of the others, and the larger of the others' distance to
        their mean and their movement in a round."""
        anchors = np.array([host.algorithm.ledger.a for host in self.others], np.float64)
        mean = anchors.mean(axis=0)
        apart = float(np.sqrt(np.mean((anchors - mean) ** 2)))
        moved = max(host.running._replica.rounds.movement for host in self.others)
        return float(np.sqrt(np.mean((self.late.algorithm.ledger.a - mean) ** 2))), max(apart, moved)

    def worst_error(self, seconds: float, hosts=None) -> float:
        """Largest distance to the optimum of these hosts' replicas in that time, by default of all others'."""
        worst, end = 0.0, self.network.now + seconds
        while self.network.now < end:
            self.wait(0.1)
            optimum = self.trainers[0].optimum
            errors = [np.sqrt(np.mean((host.algorithm.ledger.a - optimum) ** 2)) for host in hosts or self.others]
            worst = max(worst, *map(float, errors))
        return worst


ALL = [(peers, late, preset) for peers in (2, 4, 16) for late in (10.0, 15.0, 600.0) for preset in ("local", "wan")]
SOME = [(2, 15.0, "local"), (4, 15.0, "wan")]


@pytest.mark.parametrize(
    ("peers", "lateness", "preset"),
    [*SOME, *(pytest.param(*each, marks=pytest.mark.long) for each in ALL if each not in SOME)],
)
def test_late_training_process__gets_the_networks_model_and_pulls_no_peer_back(peers, lateness, preset):
    cluster, without = Late(peers, preset), Late(peers, preset)
    for each in (cluster, without):
        each.wait(lateness)
    cluster.train(cluster.late)
    without.wait(cluster.until(SessionOpened))
    distance, moved = cluster.distances()
    assert distance < 2.0 * moved
    # Where the rounds of four peers fall decides what their usual error is: 0.53 to 0.75. A pull shows only at first.
    first, later = cluster.worst_error(10.0), cluster.worst_error(20.0)
    assert first < 1.2 * max(later, without.worst_error(10.0))


@pytest.mark.parametrize(
    ("steps", "away"),
    [(60, 60.0), pytest.param(60, 300.0, marks=pytest.mark.long), pytest.param(2000, 300.0, marks=pytest.mark.long)],
)
def test_training_process_back_minutes_after_a_crash__gets_the_networks_model(steps, away):
    cluster = Late(2, trains=True)
    while cluster.late.running.view.steps < steps:
        cluster.wait(0.5)
    cluster.kill_trainer(cluster.late)
    cluster.wait(away)
    cluster.train(cluster.late)
    cluster.until(SessionOpened)
    distance, moved = cluster.distances()
    assert distance < 2.0 * moved


def test_training_process_back_at_once_after_a_crash__waits_for_no_model():
    cluster = Late(2, trains=True)
    cluster.wait(20.0)
    cluster.kill_trainer(cluster.late)
    cluster.wait(0.5)
    cluster.train(cluster.late)
    assert cluster.until(SessionOpened) < 0.1 and cluster.of(ResyncBegan) == []


def test_late_training_process_whose_source_dies_as_the_fetch_begins__uses_the_present_model():
    cluster = Late(2)
    cluster.wait(10.0)
    cluster.train(cluster.late)
    cluster.until(ResyncBegan)
    cluster.stop(cluster.others[0])
    assert cluster.until(SessionOpened) < 20.0
    assert [event.complete for event in cluster.of(ResyncEnded) if event.reason == "late"] == [False]


def test_training_process_where_all_are_idle__fetches_a_newer_model_and_no_older_one():
    cluster = Late(3)
    first, second = cluster.others
    cluster.wait(10.0)
    for host in (first, second):
        cluster.kill_trainer(host)
    cluster.wait(5.0)
    for expected in (1, 1):  # the second process finds the newest model here
        cluster.train(cluster.late)
        cluster.until(SessionOpened)
        assert [event.reason for event in cluster.of(ResyncEnded) if event.complete] == ["late"] * expected
        cluster.kill_trainer(cluster.late)
        cluster.wait(0.3)


def test_idle_peers_that_hear_of_steps_of_a_lost_peer__begin_to_train():
    """The peer that made them is gone for good, with its model."""
    cluster = Late(3)
    gone, left = cluster.others
    cluster.kill_trainer(left)
    cluster.wait(10.0)
    cluster.stop(gone, keep_disk=False)
    for host in (left, cluster.late):
        cluster.train(host)
    assert cluster.until(SessionOpened) < 20.0
    cluster.wait(20.0)
    assert left.running.view.session_open and left.running.view.clock == cluster.late.running.view.clock


def test_peer_back_beside_an_idle_one__goes_on_from_its_own_later_checkpoint():
    cluster = Late(2)
    founder, idle = cluster.network.hosts
    cluster.wait(20.0)
    cut = cluster.network.links.cut([founder], [idle])
    cluster.wait(6 * ROUND)
    cluster.save(founder)
    cluster.crash(founder, trainer=True, disk=True, torn=False)
    cluster.network.links.heal(cut)
    cluster.wait(10.0)
    assert founder.checkpoint is not None and idle.running.view.state_clock < founder.checkpoint.clock - 20
    cluster.start(founder)
    cluster.wait(20.0)
    assert [event.origin for event in cluster.of(StateReady, 0)] == ["founded", "restored"]
    assert founder.running.view.steps > 20 and idle.running.view.state_clock > founder.running.view.clock - 100


def test_process_whose_first_step_comes_a_minute_after_it_attached__pulls_no_peer_back():
    cluster = Late(2)
    cluster.late.step_slowness = 300.0  # a minute
    cluster.train(cluster.late)
    cluster.wait(50.0)
    usual = cluster.worst_error(5.0)
    cluster.late.step_slowness = 1.0
    cluster.until(RoundDone)
    assert cluster.worst_error(10.0) < 1.3 * usual


def test_training_process_that_comes_as_two_sides_meet__waits_for_the_verdict_and_gets_the_networks_model():
    """All others are held apart, so this peer's side has no source."""
    cluster = Late(4)
    cluster.wait(5.0)
    cluster.cut_off(cluster.late)
    cluster.gives = False
    cluster.network.links.heal(cluster.cut)
    while len(cluster.late.running.view.apart) < 3:
        cluster.wait(0.01)
    cluster.train(cluster.late)
    cluster.until(ResyncEnded)
    cluster.gives = True
    assert cluster.until(SessionOpened) < 5.0
    distance, moved = cluster.distances()
    assert distance < 2.0 * moved
    assert [(event.reason, event.complete) for event in cluster.of(ResyncEnded)] == [("idle", False), ("apart", True)]


def test_two_peers_that_train_keep_their_model_when_three_idle_ones_return():
    cluster = Late(5, trains=True)
    training, idle = cluster.network.hosts[:2], cluster.network.hosts[2:]
    cluster.wait(5.0)
    for host in idle:
        cluster.kill_trainer(host)
    cluster.cut_off(*idle)
    usual = cluster.worst_error(5.0, training)
    cluster.network.links.heal(cluster.cut)
    assert cluster.worst_error(15.0, training) < 1.3 * usual
    assert not any(cluster.of(ResyncBegan, host.index) for host in training)
    assert not any(host.running.view.apart for host in cluster.network.hosts)
    clocks = [host.running.view.state_clock for host in cluster.network.hosts]
    assert min(clocks) > max(clocks) - 2 * 10 * 8


def test_training_process_whose_side_gives_no_model__gets_that_of_the_greater_side():
    cluster = Late(5)
    silent = cluster.others[-1]
    cluster.wait(5.0)
    cluster.cut_off(cluster.late, silent)
    cluster.network.pause(silent, 60.0)
    cluster.train(cluster.late)
    cluster.wait(0.1)
    cluster.network.links.heal(cluster.cut)
    assert cluster.until(SessionOpened) < 5.0
    ended = [(event.reason, event.complete) for event in cluster.of(ResyncEnded)]
    assert ended[-2:] == [("late", False), ("apart", True)]
    cluster.stop(silent)
    distance, moved = cluster.distances()
    assert distance < 2.0 * moved
