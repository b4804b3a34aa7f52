"""Two halves of a network train apart and meet again. The smaller side saves its model, and follows (I15)."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipdp.runtime.storage.checkpoint import verify
from gossipdp.runtime.storage.store import Store
from peers import home as homes
from peers import invites
from simulations.processes.namespaces.hosts import Lab
from tests.processes.running import Host, end, host_in, until

pytestmark = [pytest.mark.processes, pytest.mark.long]
EVERY, APART = 10, 8
SETTINGS = f"[exchange]\nevery = {EVERY}\napart_rounds = {APART}\nwarmup_steps = 0\n"
LARGER, SMALLER = (0, 2, 4), (1, 3)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(len(LARGER + SMALLER)) as lab:
        yield lab


@pytest.fixture
def hosts(tmp_path: Path, lab: Lab) -> Iterator[list[Host]]:
    """One network, each host in a namespace, nothing started."""
    made = [host_in(lab, number, tmp_path, settings=SETTINGS) for number in range(len(lab.hosts))]
    made[0].settle_in(None)
    invite = invites.write_invite(made[0].home, [made[0].address], homes.read_config(made[0].home, {}, {}))
    for host in made[1:]:
        host.settle_in(invite.read_text())
    try:
        yield made
    finally:
        end(made)


def met(host: Host, other: Host) -> int:
    return int(host.member(other.name).get("exchanges", 0))


def failed(host: Host) -> int:
    return int(host.status()["members"]["failed"])


def pinned(host: Host) -> list[Path]:
    store = Store(host.home / "checkpoints")
    return [path for path in store.list() if store.pinned(path)]


@pytest.mark.needs("namespaces")
def test_cut_for_many_rounds__GD_607_a_pinned_checkpoint_and_one_network_again(lab: Lab, hosts: list[Host]) -> None:
    larger, smaller = ([hosts[number] for number in side] for side in (LARGER, SMALLER))
    for host in hosts:
        host.start_daemon()
        host.start_training()
    for host, other in itertools.permutations(hosts, 2):
        until(f"{host.name} meets {other.name}", lambda h=host, o=other: met(h, o) > 0, hosts)

    lab.cut([lab.hosts[number] for number in SMALLER])
    for side, others in ((larger, smaller), (smaller, larger)):
        for host in side:
            until(f"{host.name} has lost them", lambda h=host, o=others: failed(h) == len(o), hosts)
    clocks = {host.name: host.status()["clock"] for host in hosts}
    for host in hosts:
        far = clocks[host.name] + 3 * APART * EVERY
        until(f"{host.name} trains on", lambda h=host, f=far: h.status()["clock"] >= f, hosts)
    assert not any(host.status()["resyncs"] or pinned(host) for host in hosts)

    lab.heal()
    for host in smaller:
        until(f"{host.name} follows", lambda h=host: h.status()["resyncs"].get("apart"), hosts)
    for host in hosts:
        until(f"{host.name} is of one network", lambda h=host: not h.status()["apart"], hosts)
    before = {pair: met(*pair) for pair in itertools.permutations(hosts, 2)}
    for (host, other), count in before.items():
        what = f"{host.name} meets {other.name} again"
        until(what, lambda h=host, o=other, c=count: met(h, o) > c, hosts)

    for host in hosts:
        assert "GD-607" in host.text()
        assert host.status()["resyncs"] == ({"apart": 1} if host in smaller else {})
    for host in smaller:
        (kept,) = pinned(host)
        assert (Store.why_pinned(kept) or "").startswith("GD-607") and verify(kept).meta.clock > clocks[host.name]
    assert not any(pinned(host) for host in larger)
    now = [host.status()["clock"] for host in hosts]
    assert max(now) - min(now) < 20 * EVERY, now
