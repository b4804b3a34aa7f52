"""A whole network comes back after a power cut: the latest checkpoint wins, and none is lost silently (I14)."""

import pytest

from gossipdp.protocol.events import ResyncEnded
from simulations.scenarios import cold_start
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Checkpoint
from simulations.simulator.network import Conditions


def first(few, many):
    """`many` seeds, of which `make test` plays `few`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many))]


@pytest.mark.parametrize("seed", first(2, 16))
def test_peers_back_within_seconds_go_on_from_the_latest_checkpoint(seed):
    outcome = cold_start.run(seed, lasts=30.0)
    assert outcome.restored == [outcome.latest]
    assert len(outcome.origins) == outcome.peers and not outcome.ahead
    assert min(outcome.clocks.values()) == outcome.saved[outcome.latest] == max(outcome.saved.values())


@pytest.mark.long
def test_joiners_that_lose_half_of_their_messages_soon_have_the_model():
    """Seed 746 took 47 s: pauses between requests outlasted the time that a source is waited for."""
    outcome = cold_start.run(746, lasts=30.0)
    assert outcome.restored == [outcome.latest] and outcome.seconds < 30.0


@pytest.mark.parametrize("seed", first(1, 8))
def test_latest_checkpoint_that_comes_late_follows_the_network_and_is_kept(seed):
    outcome = cold_start.run(seed, late=True, lasts=15.0)
    late = outcome.latest
    assert outcome.origins[late] == "received" and late not in outcome.restored and len(outcome.restored) == 1
    said = outcome.ahead[late]
    assert said.clock == outcome.saved[late] == outcome.kept[late]
    # The report has the clock of the fetched model. The network trains on meanwhile.
    assert said.network <= outcome.clocks[late] < said.clock
    assert list(outcome.ahead) == list(outcome.kept) == [late]


def test_later_checkpoint_overwritten_silently_is_noticed():
    plan = Plan(peers=2, size=300, conditions=Conditions(), every=4, window=2)
    cluster = Cluster(1, plan)
    for host in cluster.network.hosts:
        cluster.restart(host)
    cluster.network.run(5.0)
    host = cluster.network.hosts[1]
    cluster.save(host)
    saved = host.checkpoint
    host.checkpoint = Checkpoint(saved.schema, saved.clock + 1000, saved.rounds, saved.a, saved.v)
    with pytest.raises(AssertionError, match=r"I14 p1: .* steps are lost without a report"):
        cluster.save(host)


@pytest.mark.parametrize("behind", [0, 30])
def test_model_of_another_peer_that_is_older_than_that_of_each_training_peer_is_noticed(behind, monkeypatch):
    cluster = Cluster(1, Plan(peers=3, size=300, conditions=Conditions(), every=4, window=2))
    for host in cluster.network.hosts:
        cluster.restart(host)
    cluster.network.run(10.0)
    host, saved = cluster.network.hosts[1], []
    least = min(each.running.view.clock for each in cluster.network.hosts)
    for clock in (least + 1000, least - behind):
        ledger = host.algorithm.ledger
        saved.append(Checkpoint(host.running.view.model.schema_bytes, clock, 1, ledger.a, ledger.v))
    host.checkpoint, after = saved
    monkeypatch.setattr(host, "save", lambda: setattr(host, "checkpoint", after))
    cluster._heard(host, ResyncEnded("lag", cluster.network.hosts[0].id, True, 0.1))
    if behind:
        with pytest.raises(AssertionError, match=r"I14 p1: 30 steps are lost without a report"):
            cluster.save(host)
    else:
        cluster.save(host)


@pytest.mark.long
@pytest.mark.parametrize("first", range(16, 1016, 50))
def test_fifty_more_cold_starts_go_on_from_the_latest_checkpoint(first):
    outcomes = [cold_start.run(seed) for seed in range(first, first + 50)]
    assert [o.seed for o in outcomes if o.restored != [o.latest]] == []
