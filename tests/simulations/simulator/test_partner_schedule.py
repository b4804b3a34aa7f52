"""How many exchanges a round makes, and schedules: the hypercube agrees as well as random matching if N is a power of
two and the network is calm. Churn suspends the schedule."""

from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest

from gossipdp.config import Exchange
from gossipdp.protocol.events import ExchangeStarted, RoundDone
from gossipdp.protocol.pairwise.timetable import exchanges_per_round
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions


class Early(Cluster):
    """All rounds are early, and none warms up. Counts partners met by schedule."""

    def __init__(self, seed, plan, *, schedule, exchanges=3):
        self.schedule, self.most = schedule, exchanges
        self.scheduled = self.exchanges = 0
        self.spread = []
        """disagreement after each round, once all are there"""
        super().__init__(seed, plan)

    def _config(self):
        config = super()._config()
        averaging = replace(config.averaging, schedule=self.schedule, early_exchanges=self.most)
        return replace(config, averaging=averaging, warmup_steps=0, early_steps=10**9)

    def _heard(self, host, event):
        if isinstance(event, ExchangeStarted) and event.initiator:
            self.exchanges += 1
            self.scheduled += host.peer._replica.averaging._offers._position._schedule is not None
        super()._heard(host, event)
        if isinstance(event, RoundDone) and self.network.now > self.plan.forming:
            self.spread.append(self.disagreement())


def played(schedule, *, peers=8, script=(), exchanges=3):
    plan = Plan(peers=peers, size=300, conditions=Conditions(), every=8, window=2, script=script, chaos=20.0)
    cluster = Early(11, plan, schedule=schedule, exchanges=exchanges)
    cluster.run()
    return cluster


def per_round(cluster):
    return 2 * cluster.exchanges / cluster.books.rounds


@pytest.mark.long
def test_hypercube_takes_no_more_exchanges_and_agrees_as_well():
    scheduled, random = played("hypercube"), played("")
    assert random.scheduled == 0 < scheduled.scheduled
    assert scheduled.scheduled > 0.5 * scheduled.exchanges
    assert per_round(scheduled) == pytest.approx(3, rel=0.02) == per_round(random)
    assert mean(scheduled.spread) < 1.4 * mean(random.spread)


@pytest.mark.parametrize(
    ("most", "peers", "made"), [pytest.param(1, 8, 1, marks=pytest.mark.long), (2, 8, 2), (2, 2, 1), (3, 3, 2)]
)
def test_early_rounds_make_the_configured_exchanges_if_there_are_enough_peers(most, peers, made):
    for schedule in ("hypercube", ""):
        cluster = played(schedule, peers=peers, exchanges=most)
        assert per_round(cluster) == pytest.approx(made, rel=0.04)
        assert bool(cluster.scheduled) == (schedule == "hypercube" and peers != 3)


@pytest.mark.parametrize("peers", [2, 3, 8])
def test_both_sides_make_the_exchanges_of_a_round_even_out_of_step(peers):
    """Half of a peer's exchanges are others' offers, at any time of its own round."""
    cluster = Cluster(5, Plan(peers=peers, size=300, conditions=Conditions(), every=8, window=2))
    counted = Counter()
    cluster.listeners.append(lambda host, event: counted.update([type(event)]))
    for host in cluster.network.hosts:
        cluster.network.at(0.1 + 0.37 * host.index, "start", None, lambda host=host: cluster.restart(host))
    cluster.network.run(20.0)
    counted.clear()
    cluster.network.run(80.0)
    assert counted[RoundDone] >= 20 * peers
    made = exchanges_per_round(peers, Exchange().late_exchanges)
    assert counted[ExchangeStarted] / counted[RoundDone] == pytest.approx(made, abs=0.04)


@pytest.mark.parametrize("peers", [3, pytest.param(6, marks=pytest.mark.long)])
def test_other_sizes_than_powers_of_two_meet_at_random(peers):
    assert played("hypercube", peers=peers).scheduled == 0


@pytest.mark.parametrize("peers", [5, pytest.param(6, marks=pytest.mark.long)])
def test_any_number_of_peers_follows_the_base2_graph_and_agrees(peers):
    """With weights other than one half. `agree` checks that replicas agree in a few rounds once training stops."""
    weights = set()

    class Late(Early):
        def _config(self):
            config = super()._config()
            return replace(config, early_steps=0)

        def _heard(self, host, event):
            if isinstance(event, ExchangeStarted):
                weights.add(host.peer._replica.averaging._active.terms.mixing.weight)
            super()._heard(host, event)

    plan = Plan(peers=peers, size=300, conditions=Conditions(), every=8, window=2, chaos=20.0, agree=True)
    cluster = Late(11, plan, schedule="base2")
    cluster.run()
    assert cluster.scheduled > 0.5 * cluster.exchanges
    assert 0.5 in weights and max(weights) > 0.5


@pytest.mark.parametrize("schedule", ["hypercube", pytest.param("base2", marks=pytest.mark.long)])
def test_churn_suspends_the_schedule_and_no_peer_waits_for_dead_ones(schedule):
    crashes = tuple(
        Fault(at=7.0 + 2.0 * n, kind="crash", hosts=(1 + n % 7,), lasts=1.0, trainer=True) for n in range(8)
    )
    churned, calm = played(schedule, script=crashes), played(schedule)
    shares = [one.scheduled / one.exchanges for one in (churned, calm)]
    assert shares[0] < 0.9 * shares[1], "exchanges that follow a schedule"
    assert per_round(churned) > 0.5 * per_round(calm)
