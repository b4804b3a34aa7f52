"""Real daemons that open no port, and a relay."""

from collections.abc import Callable

import pytest

from peers import home as homes
from peers import invites
from tests.processes.running import Host, Network, gossipdp, until

pytestmark = pytest.mark.processes


@pytest.fixture
def behind(network: Callable[..., Network]) -> Network:
    """A founder that carries, and two hosts that open no port. All train."""
    net = network(3)
    relay, *hidden = net.hosts
    relay.run_file.write_text(relay.run_file.read_text() + 'relay = "auto"\n')
    for host in hidden:
        text = host.run_file.read_text().replace(f'listen = "tcp://{host.address}"', 'listen = "off"')
        host.run_file.write_text(text)
    for host in net.hosts:  # an outage of some seconds is many rounds of this small model
        host.run_file.write_text(host.run_file.read_text() + "[exchange]\napart_rounds = 100000\n")
    net.settle_in()
    for host in net.hosts:
        host.start_daemon()
        host.start_training()
    return net


def row(host: Host, other: Host) -> dict[str, object]:
    return next((row for row in host.members() if row["name"] == other.name), {})


def test_two_hosts_without_a_port_exchange_through_a_member(behind: Network) -> None:
    relay, one, other = net = behind.hosts
    for host, partner in ((one, other), (other, one)):
        until(f"{host.name} and {partner.name} exchange", lambda h=host, p=partner: row(h, p).get("exchanges"), net)
        assert row(host, partner)["path"] == f"via {relay.name}"
        assert row(host, relay)["path"] == "direct"
        until("the relay has its record", lambda h=host: row(relay, h).get("path") == "direct", net)
    assert one.status()["relays"] == [relay.name] and one.status()["address"] == ""
    assert "carries messages of others to this peer" in one.log.read_text()


def test_hidden_hosts_begin_a_network_with_a_relay_that_has_no_model(network: Callable[..., Network]) -> None:
    """As docs/networking.md says: the founder dials the relay, which joins by the founder's invite."""
    net = network(3)
    founder, relay, other = net.hosts
    for host in (founder, other):
        text = host.run_file.read_text().replace(f'listen = "tcp://{host.address}"', 'listen = "off"')
        host.run_file.write_text(text + f'seeds = ["{relay.address}"]\n')
    relay.run_file.write_text(relay.run_file.read_text() + "relay_only = true\n")
    founder.settle_in(None)
    config = homes.read_config(founder.home, {}, {})
    invite = invites.write_invite(founder.home, [relay.address], config).read_text()
    for host in (relay, other):
        host.settle_in(invite)
    for host in (founder, relay, other):
        host.start_daemon()
    for host in (founder, other):
        host.start_training()
    until("they exchange", lambda: row(founder, other).get("exchanges"), net.hosts)
    assert row(founder, other)["path"] == row(other, founder)["path"] == f"via {relay.name}"
    assert relay.daemon is not None and relay.status()["verdict"]["state"] == "idle"
    assert "carries for others" in relay.status()["verdict"]["text"]


def test_relay_that_ends_costs_its_exchanges_and_comes_back(behind: Network) -> None:
    relay, one, other = net = behind.hosts
    until("the hidden hosts exchange", lambda: row(one, other).get("exchanges"), net)
    assert relay.daemon is not None
    relay.daemon.kill()
    until("the relay is missed", lambda: row(one, relay).get("state") == "failed", [one, other])
    before = one.status()["steps"]
    until("training goes on", lambda: one.status()["steps"] > before + 20, [one, other])
    relay.start_daemon()
    count = row(one, other)["exchanges"]
    until("they exchange again", lambda: row(one, other).get("exchanges", 0) > count, net)


def test_relay_is_banned_in_mid_exchange__the_hosts_go_on_through_another(network: Callable[..., Network]) -> None:
    net = network(4)
    founder, relay, second, other = net.hosts
    for host in (founder, other):
        text = host.run_file.read_text().replace(f'listen = "tcp://{host.address}"', 'listen = "off"')
        host.run_file.write_text(text + f'seeds = ["{relay.address}", "{second.address}"]\n')
    for host in (relay, second):
        host.run_file.write_text(host.run_file.read_text() + "relay_only = true\n")
    for host in net.hosts:
        host.run_file.write_text(host.run_file.read_text() + "[exchange]\napart_rounds = 100000\n")
    founder.settle_in(None)
    config = homes.read_config(founder.home, {}, {})
    invite = invites.write_invite(founder.home, [relay.address, second.address], config).read_text()
    for host in (relay, second, other):
        host.settle_in(invite)
    for host in net.hosts:
        host.start_daemon()
    for host in (founder, other):
        host.start_training()
    for host in (founder, other):
        until("both relays carry", lambda host=host: len(host.status().get("relays") or ()) == 2, net.hosts)
    until("they exchange", lambda: row(founder, other).get("exchanges"), net.hosts)
    said = gossipdp("members", "ban", relay.name, "--home", str(founder.home))
    assert said.returncode == 0, said.stderr
    for host, partner in ((founder, other), (other, founder)):
        way = lambda h=host, p=partner: row(h, p).get("path") == f"via {second.name}"  # noqa: E731
        until("the other relay carries", way, [founder, second, other])
        until("the banned one is asked no more", lambda h=host: h.status()["relays"] == [second.name], [founder, other])
    before = row(founder, other)["exchanges"]
    until("they exchange on", lambda: row(founder, other)["exchanges"] > before + 5, [founder, second, other])
