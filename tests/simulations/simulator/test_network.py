"""The simulator itself: determinism, order of events, jobs, rounds due."""

import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.protocol.events import Pace
from simulations.campaigns.networks import elsewhere
from simulations.simulator.cluster import Cluster, run_seed
from simulations.simulator.network import Conditions, Network
from tests.simulations.simulator.small_cluster import small


def test_equal_seeds_have_equal_logs():
    first, second, third = run_seed(1001, plan=small()), run_seed(1001, plan=small()), run_seed(1002, plan=small())
    assert (first.log_hash, first.events) == (second.log_hash, second.events)
    assert first.log_hash != third.log_hash


def test_log_does_not_depend_on_the_hash_salt():
    assert elsewhere(17, salt="1") == elsewhere(17, salt="2")


def test_failing_seed_names_its_replay_command(monkeypatch):
    monkeypatch.setattr(Ledger, "release", lambda self, slot: None)
    told = r"python -m simulations chaos --seed 6\n  replay: python -m simulations\.simulator\.cluster --seed 6 --trace"
    with pytest.raises(AssertionError, match=told):
        run_seed(6)
    with pytest.raises(AssertionError) as caught:
        run_seed(6, plan=small(conditions=Conditions(), script=(), peers=2))
    assert "--seed" not in str(caught.value), "the seed alone does not replay a given plan"


def test_events_at_one_time_keep_the_order_of_scheduling():
    network, seen = Network(0, Conditions(), listen=lambda host, event: None), []
    for number in range(20):
        network.at(1.0 if number % 2 else 2.0, "x", None, lambda number=number: seen.append(number))
    network.run(3.0)
    assert seen == [*range(1, 20, 2), *range(0, 20, 2)] and network.now == 3.0


def test_jobs_run_one_at_a_time_with_other_events_in_between():
    cluster = Cluster(3, small(peers=2, script=(), conditions=Conditions()))
    seen = []
    cluster.network.trace = lambda record: seen.append((record.kind, record.host, type(record.what).__name__))
    cluster.run()
    kinds = [f"run {what}" if kind == "does" else kind for kind, host, what in seen if host == 0]
    asked, finished, between = [], [], 0
    for kind in kinds:
        if kind.startswith("run "):
            asked.append(kind[4:])
        elif kind.startswith("done "):
            finished.append(kind[5:])
        elif len(asked) > len(finished):
            between += 1
    assert finished == asked[: len(finished)] and len(finished) > 50 and between > 20


def test_rounds_are_due_at_the_h_of_their_time():
    """A slow host learns of a shorter H some rounds after its start (seed 4523)."""
    cluster = Cluster(0, small(step_time=0.2, slowness=(2.0,)))
    host = cluster.network.hosts[0]
    for at, every in ((12.0, 4), (20.0, 8), (29.0, 2)):
        cluster.network.now = at
        cluster._heard(host, Pace(every))
    cluster.network.now = 32.0
    assert host.step_slowness == 2.0
    assert cluster.progress.due(host, 25.8, cluster.network.now) == pytest.approx(3.2 / 3.2 + 3.0 / 0.8)
    assert cluster.progress.due(host, 30.0, cluster.network.now) == pytest.approx(2.0 / 0.8)
