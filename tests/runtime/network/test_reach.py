"""The order in which the addresses of one peer are dialled."""

from __future__ import annotations

import ipaddress

import pytest

from gossipdp.runtime.network import reach
from gossipdp.runtime.network.reach import MAX_WORKED, NETWORKS_HOLD, Reach, is_public, own_networks

PEER = bytes(32)
OWN = [ipaddress.ip_network("10.0.0.0/24"), ipaddress.ip_network("fd00::/64"), ipaddress.ip_network("8.8.4.0/24")]


@pytest.mark.parametrize(
    ("given", "order"),
    [
        (["8.8.4.4:1", "10.0.0.9:1"], ["10.0.0.9:1", "8.8.4.4:1"]),
        (["10.0.1.9:1", "8.8.4.4:1"], ["8.8.4.4:1", "10.0.1.9:1"]),
        (["8.8.4.4:1", "[2600::1]:1", "10.1.0.9:1", "[fd00::7]:1"],
         ["[fd00::7]:1", "[2600::1]:1", "8.8.4.4:1", "10.1.0.9:1"]),
        (["127.0.0.1:1", "host.example:1"], ["host.example:1", "127.0.0.1:1"]),
        (["100.64.0.1:1", "8.8.8.8:1"], ["8.8.8.8:1", "100.64.0.1:1"]),
        (["not an address", "10.0.0.9:1", "10.0.0.9:1"], ["10.0.0.9:1", "not an address"]),
        (["10.0.0.9:1"], ["10.0.0.9:1"]),
    ],
)  # fmt: skip
def test_shared_private_network_first__then_ipv6_then_ipv4_and_names_then_the_rest(
    given: list[str], order: list[str]
) -> None:
    assert Reach(lambda: OWN).order(PEER, given, 0.0) == order


def test_address_that_worked_comes_first_for_that_peer_alone() -> None:
    made = Reach(lambda: OWN)
    addresses = ["8.8.4.4:1", "10.0.0.9:1", "[2600::1]:1"]
    made.remember(PEER, "8.8.4.4:1")
    assert made.order(PEER, addresses, 0.0)[0] == "8.8.4.4:1"
    assert made.order(bytes([1]) * 32, addresses, 0.0)[0] == "10.0.0.9:1"
    for number in range(MAX_WORKED):
        made.remember(number.to_bytes(32, "big"), "a:1")
    assert len(made._worked) == MAX_WORKED


def test_networks_of_this_host_are_read_again_after_a_while() -> None:
    networks = list(OWN)
    made = Reach(lambda: networks)
    assert made.near("10.0.0.9:1", 0.0) and not made.near("8.8.4.4:1", 0.0) and not made.near("name:1", 0.0)
    networks.clear()
    assert made.near("10.0.0.9:1", NETWORKS_HOLD - 1) and not made.near("10.0.0.9:1", NETWORKS_HOLD)


def test_networks_of_this_host_are_those_of_its_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    from types import SimpleNamespace

    def address(text: str, mask: str | None) -> SimpleNamespace:
        return SimpleNamespace(family=socket.AF_INET6 if ":" in text else socket.AF_INET, address=text, netmask=mask)

    found = {
        "lo": [address("127.0.0.1", "255.0.0.0")],
        "eth0": [address("10.0.0.4", "255.255.255.0"), address("fd00::4%eth0", "ffff:ffff:ffff:ffff::")],
        "tun0": [address("100.64.0.9", "255.255.255.255"), address("10.9.0.1", None)],
    }
    monkeypatch.setattr(reach.psutil, "net_if_addrs", lambda: found)
    assert own_networks() == OWN[:2]


def test_names_count_as_public() -> None:
    assert is_public("host.example:1") and is_public("[2600::1]:1") and not is_public("10.0.0.1:1")
