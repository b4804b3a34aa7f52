"""Real daemons behind routers that translate addresses or filter, and a member that carries."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from simulations.processes.namespaces import hosts as labs
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.nats import Nat, behind, forget_idle, move
from simulations.processes.progress import until
from tests.processes.running import PORT, Host, end

pytestmark = [pytest.mark.processes, pytest.mark.needs("NAT")]
RELAY_PORT = 443
"""a firewall that filters lets it pass"""
Make = Callable[..., list[Host]]


@pytest.fixture
def internet() -> Iterator[Lab]:
    with Lab(6, subnet="44.77") as lab:
        yield lab


@pytest.fixture
def make(tmp_path: Path, internet: Lab) -> Iterator[Make]:
    """Makes a founder that carries, and one host behind each given NAT, with settings of [network]. All train."""
    made: list[Host] = []
    with contextlib.ExitStack() as stack:
        stack.callback(end, made)

        def start(nats: Sequence[Nat], *network: str) -> list[Host]:
            outside, *routers = internet.hosts[: 1 + len(nats)]
            made.append(host(tmp_path, "relay", outside, RELAY_PORT, 'relay = "auto"'))
            made[0].settle_in(None)
            made[0].start_daemon()
            invite = made[0].home / "invite"
            until("the founder writes an invite", invite.exists, made)
            for number, (router, nat) in enumerate(zip(routers, nats, strict=True), 1):
                place = stack.enter_context(behind(router, nat, PORT))
                made.append(host(tmp_path, f"h{number}", place, PORT, *network))
                made[-1].settle_in(invite.read_text())
                made[-1].start_daemon()
            for each in made:
                each.start_training()
            return made

        yield start


def host(directory: Path, name: str, place: labs.Host, port: int, *network: str) -> Host:
    made = Host(
        directory, name, founder=name == "relay", address=place.address, port=port, within=place.command, size=20_000
    )
    lines = [line for line in made.run_file.read_text().splitlines() if not line.startswith("listen")]
    more = ["[exchange]", "apart_rounds = 100000"]  # an outage of some seconds is many rounds of this small model
    made.run_file.write_text("\n".join([*lines, f'listen = "tcp://*:{port}"', *network, *more, ""]))
    return made


def until_they_exchange(one: Host, other: Host, hosts: Sequence[Host], after: int = 0) -> None:
    def done() -> int:
        return int(one.member(other.name).get("exchanges") or 0)

    until(f"{one.name} and {other.name} exchange", lambda: done() > after, hosts, moves=done)


def connected(here: labs.Host, address: str, port: int) -> bool:
    with here.inside():
        try:
            socket.create_connection((address, port), timeout=0.5).close()
        except OSError:
            return False
    return True


@pytest.mark.parametrize("nat", Nat)
def test_nat__lets_connections_out__and_in_only_where_it_says_so(internet: Lab, nat: Nat) -> None:
    outside, router = internet.hosts[:2]
    with behind(router, nat, PORT) as inside, contextlib.ExitStack() as stack:
        for place in (outside, inside):
            for port in (PORT, RELAY_PORT):
                with place.inside():
                    stack.enter_context(socket.create_server(("0.0.0.0", port)))
        assert connected(inside, outside.address, RELAY_PORT)
        assert connected(inside, outside.address, PORT) == (nat is not Nat.WEB_ONLY)
        assert connected(outside, router.address, PORT) == (nat is Nat.FULL_CONE)
        assert not connected(outside, router.address, RELAY_PORT)


def test_behind_two_nats_and_behind_a_firewall__the_hosts_exchange(make: Make) -> None:
    relay, one, other = net = make([Nat.DOUBLE, Nat.WEB_ONLY], 'advertise = "none"')
    for host_, partner in ((one, other), (other, one)):
        until_they_exchange(host_, partner, net)
        assert host_.member(partner.name)["path"] == f"via {relay.name}"
    assert one.status()["relays"] == [relay.name]


@pytest.mark.long
def test_every_kind_of_nat__all_exchange_with_all__and_the_forwarded_port_is_dialled(make: Make) -> None:
    relay, *hidden = net = make(list(Nat))
    cone = hidden[list(Nat).index(Nat.FULL_CONE)]
    for one in hidden:
        for other in hidden:
            if one is not other:
                until_they_exchange(one, other, net)
    # Members find out that the cone's port is forwarded, and it advertises its outside address.
    until("the cone is dialled", lambda: relay.member(cone.name).get("address") == f"44.77.0.4:{PORT}", net)
    symmetric = hidden[list(Nat).index(Nat.SYMMETRIC)]
    until("the path is direct", lambda: symmetric.member(cone.name).get("path") == "direct", net)


@pytest.mark.long
def test_router_that_forgets_idle_connections__exchanges_go_on(make: Make, internet: Lab) -> None:
    _, one, other = net = make([Nat.PORT_RESTRICTED, Nat.SYMMETRIC])
    for router in internet.hosts[1:3]:
        forget_idle(router, 4)
    until_they_exchange(one, other, net)
    lost = one.status()["exchanges"].get("failed", 0)
    until_they_exchange(one, other, net, after=one.member(other.name)["exchanges"] + 50)
    assert one.status()["exchanges"].get("failed", 0) == lost


@pytest.mark.long
def test_outside_address_changes__the_host_dials_again_and_exchanges_go_on(make: Make, internet: Lab) -> None:
    relay, one, other = net = make([Nat.PORT_RESTRICTED, Nat.SYMMETRIC])
    until_they_exchange(one, other, net)
    move(internet.hosts[1], "44.77.9.9")
    until_they_exchange(one, other, net, after=one.member(other.name)["exchanges"] + 20)
    until_they_exchange(one, relay, net, after=one.member(relay.name)["exchanges"] or 0)
