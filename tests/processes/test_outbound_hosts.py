"""Peers that others cannot dial: by configuration, and by their own finding (GD-102)."""

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers import home as homes
from peers import invites
from simulations.processes.namespaces import hosts as labs
from simulations.processes.namespaces.hosts import Lab
from tests.processes.running import PORT, Host, Network, end, gossipdp, host_in, until

pytestmark = pytest.mark.processes


def close_port(place: labs.Host) -> None:
    """As a NAT or a firewall does: connections from outside to the peer's port fail, its own ones work."""
    rule = ("rule", "add", "ipproto", "tcp", "sport", str(PORT), "blackhole")
    subprocess.run(["ip", "-n", place.namespace, *rule], check=True)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[list[Host]]:
    """Two dialable hosts, the founder first, and two that cannot be dialled, each in a namespace, nothing started."""
    with Lab(4) as lab:
        made = [host_in(lab, number, tmp_path) for number in range(4)]
        for place in lab.hosts[2:]:
            close_port(place)
        try:
            yield made
        finally:
            end(made)


@pytest.mark.long
@pytest.mark.needs("namespaces")
def test_port_closed_to_the_outside__GD_102_then_a_full_peer_over_its_own_links(behind: list[Host]) -> None:
    direct, closed = behind[:2], behind[2:]
    behind[0].settle_in(None)
    seeds = [host.address for host in direct]
    invite = invites.write_invite(behind[0].home, seeds, homes.read_config(behind[0].home, {}, {})).read_text()
    for host in behind[1:]:
        host.settle_in(invite)
    for host in behind:
        host.start_daemon()
        host.start_training()
    for host in closed:
        until(f"{host.name} finds out", lambda host=host: "GD-102" in host.text(), behind)
        assert re.search(rf"members could not reach {host.address}, tried \d times; open TCP port {PORT}", host.text())
        assert any("GD-102" in notice for notice in host.status()["notices"])
        assert host.status()["address"] == ""
    for host, other in itertools.product(behind, behind):
        path = "outbound-only" if other in closed else "direct"
        what = f"{host.name} shows {other.name} as {path}"
        until(what, lambda h=host, o=other, p=path: h.member(o.name).get("path") == p, behind)
    assert not any("GD-102" in host.text() for host in direct)

    before = {host.name: host.exchanges() for host in behind}
    met = {pair: exchanges(*pair) for pair in itertools.permutations(behind, 2)}
    for host in behind:
        until(f"{host.name} goes on", lambda h=host: h.exchanges() >= before[h.name] + 20, behind)
    more = {pair: exchanges(*pair) - met[pair] for pair in itertools.permutations(behind, 2)}
    assert more[closed[0], closed[1]] <= 1, "the two matched each other"  # one may have been under way before they knew
    for host in closed:
        # On the hypercube, which four peers follow in early rounds, each has two partners.
        assert any(more[host, other] > 0 for other in direct), f"{host.name} met nobody who can be dialled"
    for host in behind:
        assert host.status()["members"] == {"alive": 4, "suspect": 0, "failed": 0, "left": 0}


def exchanges(host: Host, other: Host) -> int:
    return int(host.member(other.name).get("exchanges", 0))


def test_listens_nowhere__joins_gets_the_model_and_trains_on(tmp_path: Path, network: Callable[..., Network]) -> None:
    made = network(1)
    founder = made.founder
    quiet = [
        Host(tmp_path / "hosts", f"q{number}", founder=False, settings='advertise = "none"\n') for number in range(2)
    ]
    for host in quiet:
        text = host.run_file.read_text().splitlines()
        host.run_file.write_text("\n".join('listen = "off"' if line.startswith("listen") else line for line in text))
    made.hosts += quiet
    made.start()
    made.until_it_runs(exchanges=5)
    rows = json.loads(gossipdp("--home", str(founder.home), "members", "--json").stdout)
    rows = rows["members"] if isinstance(rows, dict) else rows
    assert {row["name"]: row["path"] for row in rows} == {"h0": "direct", "q0": "outbound-only", "q1": "outbound-only"}
    first, second = quiet
    # The second's model must come from the founder: no message passes from one to the other.
    assert exchanges(first, second) == exchanges(second, first) == 0
    assert first.member(second.name)["state"] == second.member(first.name)["state"] == "alive"
    assert first.member(second.name)["received"] == 0
    for host in made.hosts:
        assert " is suspect" not in host.text() and " has failed" not in host.text()
        assert not any(code in host.text() for code in ("GD-102", "GD-103"))
