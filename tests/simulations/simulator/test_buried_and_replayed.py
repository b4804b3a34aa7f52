"""A host dies for good as the faults end (I8). A stranger repeats old messages (I10). The checks notice peers that
ignore either."""

import re

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import MemberChanged
from gossipdp.protocol.membership.suspects import Suspects
from gossipdp.protocol.wire.messages import State
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions
from tests.simulations.faulty_responders import reopen_mixed_chunks


def plan(**changes):
    fields = {
        "peers": 4,
        "size": 8192 + 300,
        "conditions": Conditions(latency=0.02, loss=0.1, job=0.01),
        "every": 4,
        "window": 2,
        "chaos": 10.0,
    }
    return Plan(**{**fields, **changes})


def played(seed=1, **changes):
    cluster = Cluster(seed, plan(**changes))
    cluster.run()
    return cluster


def violation(seeds=range(4), **changes):
    """The violation of the first failing run, or an empty string."""
    for seed in seeds:
        try:
            played(seed, **changes)
        except AssertionError as error:
            return str(error)
    return ""


# -- the dead -------------------------------------------------------------------------------------------------------


def test_host_that_dies_as_the_faults_end_is_failed_by_all():
    cluster = played(dead=True)
    (dead,) = [host for host in cluster.network.hosts if host.peer is None]
    others = [host.running.view.members for host in cluster.network.hosts if host is not dead]
    assert [members[dead.id].state for members in others] == [State.FAILED] * 3


def test_needed_seed_and_last_host_with_the_model_survive():
    for seed in range(2):
        cluster = played(seed, peers=3, dead=True, script=(Fault(at=9.0, kind="crash", hosts=(1,), lasts=50.0),))
        assert sum(host.peer is not None and host.running.view.ready for host in cluster.network.hosts) == 2
        assert any(host.peer is not None for host in cluster.network.hosts[:2])


@pytest.mark.long
def test_suspicion_that_never_ends_is_noticed(monkeypatch):
    assert violation(range(1), dead=True) == ""
    monkeypatch.setattr(Suspects, "overdue", lambda self, now: [])
    monkeypatch.setattr(Suspects, "next_verdict", lambda self: float("inf"))
    assert re.match(r"I8 p\d has not noticed that p\d is dead", violation(range(1), dead=True))


def test_dead_host_revived_by_old_news_is_noticed():
    cluster = played(dead=True)
    one, dead = sorted(cluster.network.hosts, key=lambda host: host.peer is None)[::3]
    failed = one.running.view.members[dead.id]
    assert failed.state == State.FAILED
    for told, changes in (
        ("old gossip has raised", {"state": State.ALIVE}),
        ("old gossip has raised", {"state": State.SUSPECT}),
        ("has never said", {"state": State.ALIVE, "refutation": failed.refutation + 1}),
        ("has never said", {"state": State.ALIVE, "incarnation": 2}),
        ("goes back to an earlier word", {"incarnation": 0}),
    ):
        with pytest.raises(AssertionError, match=f"I8 {one.name} .*{told}|I8 {one.name}: {told}"):
            cluster.books.heard(one, MemberChanged(replace(failed, **changes), State.FAILED))


# -- a stranger -----------------------------------------------------------------------------------------------------

RESTARTS = tuple(Fault(at=8.0 + 2 * n, kind="crash", hosts=(1 + n,), lasts=0.5, busy=True) for n in range(3))


def stranger(later, lasts=4.0, peers=4):
    """A stranger that repeats the messages of all hosts."""
    return tuple(Fault(at=6.5, kind="replay", hosts=(host,), lasts=lasts, factor=later) for host in range(peers))


@pytest.mark.parametrize("later", [0.3, 3.0])
def test_repeated_messages_change_nothing_in_any_life(later):
    repeated = played(script=(*stranger(later), *RESTARTS)).network.replayed
    assert repeated["same life"] > 80 and repeated["later life"] >= 5, repeated


def test_without_a_stranger_nothing_is_repeated():
    cluster = played(script=RESTARTS)
    assert not cluster.network.replayed


@pytest.mark.long
def test_chunk_mixed_again_when_a_stranger_repeats_it_is_noticed(monkeypatch):
    """Without the stranger no message arrives twice here."""
    reopen_mixed_chunks(monkeypatch)
    long = {"peers": 3, "size": 2 * 8192 + 300, "conditions": Conditions(latency=0.02, job=0.04)}
    assert violation(range(2), **long) == ""
    noticed = violation(range(2), **long, script=stranger(0.2, 2.0, 3))
    assert "applied twice" in noticed or "moved elsewhere than to its partner" in noticed
