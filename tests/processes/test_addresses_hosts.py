"""Hosts whose addresses differ from what they see themselves: a port map, IPv6 alone, private networks, a VPN."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from peers import home as homes
from peers import invites
from simulations.processes.namespaces import hosts as labs
from simulations.processes.namespaces.hosts import Lab
from tests.processes.running import PORT, Host, end, environment, host_in, until

pytestmark = [pytest.mark.processes, pytest.mark.needs("namespaces")]
FORWARDER = str(Path(__file__).with_name("forwarder.py"))


@pytest.fixture
def pair(tmp_path: Path, lab: Lab) -> Iterator[list[Host]]:
    """Two hosts that listen on all addresses, the founder first, nothing started."""
    made = [host_in(lab, number, tmp_path) for number in range(2)]
    for host in made:
        configure(host)
    try:
        yield made
    finally:
        end(made)


def configure(host: Host, *settings: str) -> None:
    lines = [line for line in host.run_file.read_text().splitlines() if not line.startswith("listen")]
    host.run_file.write_text("\n".join([*lines, f'listen = "tcp://*:{PORT}"', *settings, ""]))


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def founded(pair: Sequence[Host]) -> str:
    """Start the founder; the text of its invite."""
    pair[0].settle_in(None)
    pair[0].start_daemon()
    until("the founder writes an invite", (pair[0].home / "invite").exists, pair)
    return (pair[0].home / "invite").read_text()


def until_both_know_each_other(pair: Sequence[Host]) -> None:
    for host, other in (pair, pair[::-1]):
        until(f"{host.name} knows {other.name}", lambda h=host, o=other: h.member(o.name).get("state") == "alive", pair)


def addresses(host: Host) -> list[str]:
    return list(host.status().get("addresses", []))


class Container(NamedTuple):
    """A namespace behind the second host."""

    host: labs.Host
    way_out: subprocess.Popen[bytes]
    """the forwarder of port 4710 to the founder"""


@pytest.fixture
def container(lab: Lab) -> Iterator[Container]:
    """A namespace behind the second host, which forwards two ports: 33526 to the container, and 4710 to the founder.

    No other way leads in or out.
    """
    router = lab.hosts[1]
    inside = labs.Host(0, f"{router.namespace}-in", "192.168.50.2")
    ip("netns", "add", inside.namespace)
    forwarders = []
    try:
        ip(
            "-n",
            router.namespace,
            "link",
            "add",
            "in0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            inside.namespace,
        )
        for namespace, device, address in (
            (router.namespace, "in0", "192.168.50.1"),
            (inside.namespace, "eth0", inside.address),
        ):
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
            ip("-n", namespace, "link", "set", device, "up")
            ip("-n", namespace, "link", "set", "lo", "up")
        for here, there in (
            ("10.77.0.2:33526", f"{inside.address}:{PORT}"),
            (f"192.168.50.1:{PORT}", f"10.77.0.1:{PORT}"),
        ):
            argv = router.command([sys.executable, "-I", "-S", FORWARDER, here, there])
            forwarders.append(subprocess.Popen(argv, env=environment()))
        yield Container(inside, forwarders[1])
    finally:
        for forwarder in forwarders:
            forwarder.kill()
            forwarder.wait()
        subprocess.run(["ip", "netns", "delete", inside.namespace], check=False)


def test_port_map_of_a_marketplace__other_hosts_dial_the_outside_port(
    pair: list[Host], container: Container, tmp_path: Path
) -> None:
    founder = pair[0]
    rented = pair[1] = Host(
        tmp_path, "rented", founder=False, address=container.host.address, port=PORT, within=container.host.command
    )
    configure(rented)
    invite = invites.read_invite(founded(pair)).invite
    homes.join(rented.home, invite.__class__(invite.network, invite.secret, (f"192.168.50.1:{PORT}",)), None)
    rented.run_file.replace(homes.run_file(rented.home))
    variables = {"VAST_CONTAINERLABEL": "C.1", "PUBLIC_IPADDR": "10.77.0.2", "VAST_TCP_PORT_4710": "33526"}
    rented.start_daemon(**variables)
    until_both_know_each_other(pair)
    status = rented.status()
    assert status["address"] == founder.member("rented")["address"] == "10.77.0.2:33526"
    assert status["address_why"] == "the port map of Vast.ai for TCP port 4710"
    # The founder, started again, dials it there. The container could be first to dial, so its way out is closed.
    remembered = founder.home / "members.json"
    until("the founder remembers it", lambda: remembered.exists() and "33526" in remembered.read_text(), pair)
    assert founder.daemon is not None
    founder.daemon.kill()
    container.way_out.kill()
    founder.start_daemon()
    until("it is dialled", lambda: "at 10.77.0.2:33526 (outbound)" in founder.text(), pair)
    assert "GD-102" not in rented.text()


@pytest.mark.needs("IPv6")
def test_ipv6_alone__the_global_address_is_chosen_and_dialled(pair: list[Host], lab: Lab) -> None:
    for number, place in enumerate(lab.hosts, 1):
        ip("-n", place.namespace, "address", "flush", "dev", "eth0", "scope", "global")
        ip("-n", place.namespace, "address", "add", f"2600:77::{number}/64", "dev", "eth0", "nodad")
    invite = founded(pair)
    assert invites.read_invite(invite).invite.seeds == (f"[2600:77::1]:{PORT}",)
    pair[1].settle_in(invite)
    pair[1].start_daemon()
    until_both_know_each_other(pair)
    assert addresses(pair[1]) == [f"[2600:77::2]:{PORT}"]


def test_members_share_a_vpn__they_meet_there_though_their_public_addresses_work(tmp_path: Path) -> None:
    """Each host of the VPN has a single address on it, and a route to each other host, as Tailscale makes them."""
    with Lab(3) as lab:
        made = [host_in(lab, number, tmp_path) for number in range(3)]
        for number, (host, place) in enumerate(zip(made, lab.hosts, strict=True), 1):
            configure(host)
            ip("-n", place.namespace, "address", "flush", "dev", "eth0", "scope", "global")
            ip("-n", place.namespace, "address", "add", f"8.8.4.{number}/24", "dev", "eth0")
            if number > 1:
                mine, other = f"100.64.0.{number}", f"100.64.0.{5 - number}"
                ip("-n", place.namespace, "address", "add", f"{mine}/32", "dev", "eth0")
                ip("-n", place.namespace, "route", "add", f"{other}/32", "dev", "eth0", "src", mine)
        try:
            invite = founded(made)
            assert invites.read_invite(invite).invite.seeds == (f"8.8.4.1:{PORT}",)
            for host in made[1:]:
                host.settle_in(invite)
                host.start_daemon()
            for host, mine, other in ((made[1], 2, 3), (made[2], 3, 2)):
                until(f"{host.name} has a link", lambda h=host, o=other: f" at 100.64.0.{o}" in h.text(), made)
                assert f" at 8.8.4.{other}" not in host.text()
                assert addresses(host) == [f"8.8.4.{mine}:{PORT}", f"100.64.0.{mine}:{PORT}"]
        finally:
            end(made)


@pytest.mark.long
def test_public_addresses_are_dead__members_of_one_private_network_meet_there_and_drop_them(
    pair: list[Host], lab: Lab
) -> None:
    for number, (host, place) in enumerate(zip(pair, lab.hosts, strict=True), 1):
        configure(host, f'advertise = ["8.8.4.{number}", "{place.address}"]')
        ip("-n", place.namespace, "route", "add", "8.8.4.0/24", "dev", "eth0")
    pair[1].settle_in(founded(pair))
    pair[1].start_daemon()
    until_both_know_each_other(pair)
    assert addresses(pair[0]) == [f"8.8.4.1:{PORT}", f"10.77.0.1:{PORT}"]
    dead, alive = f"8.8.4.2:{PORT}", f"10.77.0.2:{PORT}"
    until("the dead one is dropped", lambda: addresses(pair[1]) == [alive], pair)
    told = f"members could not reach {dead}, tried 2 times: it is no longer advertised, but {alive} is"
    assert told in pair[1].text()
    until("the other member hears so", lambda: pair[0].member(pair[1].name)["others"] == [], pair)
    assert not any("GD-102" in host.text() for host in pair)
