"""Two hosts that are two network namespaces: joining by an invite, the errors of joining, and bytes on the cable."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network.identity import NetworkSecret
from gossipdp.runtime.network.invite import Invite
from peers import home as homes
from peers import invites
from simulations.processes.namespaces.hosts import Counters, Lab
from tests.processes.running import Host, end, gossipdp, host_in, until

pytestmark = [pytest.mark.processes, pytest.mark.needs("namespaces")]


class Hosts:
    """Homes whose processes run in the namespaces of a lab."""

    def __init__(self, directory: Path, lab: Lab) -> None:
        self.directory, self.lab = directory, lab
        self.made: list[Host] = []

    def make(self, number: int, *, size: int = 200_000, pace: float = 0.01, settings: str = "") -> Host:
        host = host_in(self.lab, number, self.directory, size=size, pace=pace, settings=settings)
        self.made.append(host)
        return host

    def invite(self) -> Path:
        path = self.made[0].home / "invite"
        until("the founder writes an invite", path.exists, self.made)
        return path


@pytest.fixture
def hosts(tmp_path: Path, lab: Lab) -> Iterator[Hosts]:
    made = Hosts(tmp_path, lab)
    try:
        yield made
    finally:
        end(made.made)


def founded(hosts: Hosts, **options: float) -> Host:
    host = hosts.make(0, **options)  # type: ignore[arg-type]
    host.settle_in(None)
    host.start_daemon()
    host.start_training()
    return host


def joined(hosts: Hosts, invite: str, **options: object) -> Host:
    host = hosts.make(1, **options)  # type: ignore[arg-type]
    host.settle_in(invite)
    host.start_daemon()
    return host


@pytest.mark.parametrize(
    ("size", "pace", "exchanges"),
    [(1_000_000, 0.02, 16), pytest.param(11_000_000, 0.1, 12, marks=pytest.mark.long)],
    ids=["1M", "11M"],
)
def test_joined_by_an_invite__exchanges_and_the_cable_carries_what_the_formula_says(
    hosts: Hosts, lab: Lab, size: int, pace: float, exchanges: int
) -> None:
    first = hosts.make(0, size=size, pace=pace)
    first.start_supervised()
    second = hosts.make(1, size=size, pace=pace)
    second.start_supervised(join=f"@{hosts.invite()}")
    # After the warm start: pace, codec and ranges stay the same for the rest of a run.
    until("3-bit exchanges", lambda: settled(second), hosts.made, moves=second.exchanges)

    def at_rest() -> tuple[dict[str, Any], Counters] | None:
        """Exchanges and bytes on the cable, at a moment between two exchanges."""
        before, carried, after = second.status(), lab.hosts[1].counters(), second.status()
        same = before["exchanges"] == after["exchanges"] and not before["partner"] and not after["partner"]
        return (after, carried) if same else None

    before, counted = until("a moment between exchanges", at_rest, hosts.made)
    enough = before["exchanges"]["done"] + exchanges
    until(f"{exchanges} more exchanges", lambda: second.exchanges() >= enough, hosts.made, moves=second.exchanges)
    after, carried = until("a moment between exchanges", at_rest, hosts.made)
    on_cable = (carried - counted).received_bytes

    parameters = after["exchanged_parameters"] - before["exchanged_parameters"]
    payload = (after["exchanged_bytes"] - before["exchanged_bytes"]) / parameters
    formula = (after["formula_bytes"] - before["formula_bytes"]) / parameters
    # Encryption, TCP, Ethernet, pings and gossip are included.
    socket = on_cable / parameters
    print(
        f"bytes received per parameter per exchange, {parameters / size:.0f} exchanges of {size} parameters: "
        f"messages {payload:.4f}, formula and counted escalations {formula:.4f}, "
        f"cable {socket:.4f} ({socket / formula:.3f} x the formula)"
    )
    assert abs(payload / formula - 1.0) <= 0.05
    assert abs(socket / formula - 1.0) <= 0.05


def settled(host: Host) -> bool:
    last = host.status().get("last_exchange") or {}
    return last.get("codec") == "modulo3" and not host.status().get("warming_up", True) and host.exchanges() >= 10


def test_wrong_secret__both_logs_say_GD_201_and_the_newcomer_tries_on(hosts: Hosts) -> None:
    first = founded(hosts)
    invite = invites.read_invite(hosts.invite().read_text())
    stranger = invite._replace(invite=Invite(invite.invite.network, NetworkSecret.generate(), invite.invite.seeds))
    second = hosts.make(1)
    homes.join(second.home, stranger.invite, second.run_file.read_text())
    second.start_daemon()
    for host in (first, second):
        until(f"GD-201 in the log of {host.name}", lambda host=host: "GD-201" in host.text(), hosts.made)
    assert first.status()["members"]["alive"] == 1
    for host in (first, second):
        assert any("GD-201" in notice for notice in host.status()["notices"])
    assert [verdict(host) for host in (first, second)] == ["alone", "refused"]


def test_wrong_addresses__GD_101_names_each_with_its_reason(hosts: Hosts) -> None:
    founded(hosts)
    invite = invites.read_invite(hosts.invite().read_text())
    tried = {"10.77.0.1:4999": "refused", "10.77.0.99:4710": "", "localhost:4998": "refused"}
    second = hosts.make(1)
    wrong = invite._replace(invite=Invite(invite.invite.network, invite.invite.secret, tuple(tried)))
    homes.join(second.home, wrong.invite, second.run_file.read_text())
    second.start_daemon()

    def told() -> bool:
        text = second.text()
        return all(re.search(rf"GD-101 {re.escape(address)}: .*{why}", text) for address, why in tried.items())

    until("each address and why", told, hosts.made)
    # A name has several addresses, and each is listed.
    assert re.search(r"GD-101 localhost:4998: .*127\.0\.0\.1:4998 refused", second.text())
    said = gossipdp("--home", str(second.home), "status")
    assert "GD-101" in said.stdout and "10.77.0.1:4999" in said.stdout
    assert said.stdout.startswith("joining: no peer answers at ") and "10.77.0.1:4999 (refused)" in said.stdout


def test_another_model__GD_301_names_the_first_parameter_that_differs(hosts: Hosts) -> None:
    first = founded(hosts, size=20_000)
    second = joined(hosts, hosts.invite().read_text(), size=30_000)
    training = second.start_training()
    assert training.ended() == 6
    until("the daemon's log says so too", lambda: second.text().count("GD-301") >= 2, hosts.made)
    assert re.search(r"GD-301 .*\bx\b.*20000.*30000|GD-301 .*\bx\b.*30000.*20000", second.text().replace(",", ""))
    assert first.status()["members"]["alive"] == 2


def test_cable_pulled_and_put_back__both_train_on_and_find_each_other(hosts: Hosts, lab: Lab) -> None:
    first = founded(hosts)
    second = joined(hosts, hosts.invite().read_text())
    second.start_training()
    both = (first, second)
    for host in both:
        until(f"{host.name} exchanges", lambda host=host: host.exchanges() > 0, hosts.made)

    for host in both:
        until(f"{host.name} is healthy", lambda host=host: verdict(host) == "healthy", hosts.made)
    pulled = time.monotonic()
    lab.unplug(lab.hosts[1])
    for host, other in (both, both[::-1]):
        until(f"{host.name} misses {other.name}", lambda h=host, o=other: state(h, o) == "failed", hosts.made)
        assert verdict(host) == "degraded"
    before = [host.exchanges() for host in both]
    lab.plug(lab.hosts[1])
    for host, other in (both, both[::-1]):
        until(f"{host.name} has {other.name} again", lambda h=host, o=other: state(h, o) == "alive", hosts.made)
    for host, had in zip(both, before, strict=True):
        until(f"{host.name} exchanges again", lambda host=host, had=had: host.exchanges() > had, hosts.made)
    for host in both:
        until(f"{host.name} is healthy again", lambda host=host: verdict(host) == "healthy", hosts.made)
        pause = host.longest_pause(pulled, time.monotonic())
        assert pause < 2.0, f"{host.name} made no step for {pause:.1f} s"


def verdict(host: Host) -> str:
    return str(host.status()["verdict"]["state"])


def state(host: Host, of: Host) -> str:
    return str(host.member(of.name).get("state"))
