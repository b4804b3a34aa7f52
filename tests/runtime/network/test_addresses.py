"""Which address a peer advertises and why, port maps of marketplaces, and the order in which addresses are dialled."""

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossipdp.runtime.network import addresses, reach
from gossipdp.runtime.network.addresses import Choice, choose, doubt
from gossipdp.runtime.network.port_maps import PREFIXES, port_map
from gossipdp.runtime.network.reach import MAX_WORKED, NETWORKS_HOLD, Reach, is_public, own_networks


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1", "127.0.0.1:4710"), ("10.1.2.3", "10.1.2.3:4710"), ("[fd00::1]", "[fd00::1]:4710")],
)
def test_peer_that_listens_on_one_address_advertises_it(listen: str, address: str) -> None:
    assert choose(listen, 4710, ["192.0.2.1:4710"], {}) == Choice((address,), "the address it listens on")


def test_peer_that_listens_everywhere_advertises_the_address_from_which_it_reaches_its_seed() -> None:
    found = choose("*", 4711, ["127.0.0.1:4710"], {})
    assert found.addresses == ("127.0.0.1:4711",) and "127.0.0.1:4710" in found.why


def test_seed_that_is_no_valid_name_is_skipped() -> None:
    assert choose("*", 1, ["gpu1..internal:2", f"{'g' * 64}:2", "127.0.0.1:3"], {}).addresses == ("127.0.0.1:1",)


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Sets the addresses of each interface; "route" is the source of the default route. br0 is a bridge, tun0 a VPN."""
    (tmp_path / "br0" / "bridge").mkdir(parents=True)
    for name, kind in (("eth0", "1"), ("tun0", "65534")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
    monkeypatch.setattr(addresses, "SYS_NET", tmp_path)
    monkeypatch.setattr(addresses, "IF_INET6", tmp_path / "if_inet6")

    def set_to(route: str = "", fleeting: str = "", **given: str) -> None:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        found = {
            name: [SimpleNamespace(family=families[":" in text], address=text) for text in texts.split()]
            for name, texts in given.items()
        }
        monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: found | {"lo": []})
        sources = {"192.0.2.1": route, "good": "10.9.8.7", "::9": fleeting, "fd7a:115c:a1e0::9": "fd7a:115c:a1e0::2"}
        monkeypatch.setattr(reach, "source_towards", lambda host, port: sources.get(host, ""))
        number = ipaddress.ip_address(fleeting).packed.hex() if fleeting else ""
        (tmp_path / "if_inet6").write_text(f"{number} 02 40 00 01 eth0\n" if fleeting else "")

    return set_to


def test_seed_without_an_address_is_skipped(interfaces: Callable[..., None]) -> None:
    interfaces(eth0="8.8.4.4 10.9.8.7")
    found = choose("*", 1, ["bad:2", "good:3"], {})
    assert found == Choice(("10.9.8.7:1", "8.8.4.4:1"), "the address from which it reaches good:3")


PUBLIC, FIRST = "its first public address", "its first address, because no seed is known"


@pytest.mark.parametrize(
    ("listen", "given", "expected", "why"),
    [
        ("*", {"eth0": "10.0.0.4 fe80::1%eth0 8.8.4.4"}, ("8.8.4.4:4", "10.0.0.4:4"), PUBLIC),
        ("0.0.0.0", {"eth0": "10.0.0.4"}, ("10.0.0.4:4",), FIRST),
        ("*", {"lo": "127.0.0.1 ::1"}, ("127.0.0.1:4",), "loopback: this host has no other address"),
        ("*", {"eth0": "10.0.0.4 2600::4"}, ("[2600::4]:4", "10.0.0.4:4"), PUBLIC),
        ("0.0.0.0", {"eth0": "10.0.0.4 2600::4"}, ("10.0.0.4:4",), FIRST),
        ("*", {"eth0": "2600::4", "eth1": "2600::5 fd00::1"}, ("[2600::4]:4",), PUBLIC),
        ("*", {"eth0": "10.0.0.4", "br0": "172.17.0.1"}, ("10.0.0.4:4",), FIRST),
        ("*", {"br0": "10.0.0.4", "route": "10.0.0.4"}, ("10.0.0.4:4",), FIRST),
        ("*", {"eth0": "2600::4 2600::9", "fleeting": "2600::4"}, ("[2600::9]:4",), PUBLIC),
        ("*", {"eth0": "2600::4", "fleeting": "2600::4"}, ("[2600::4]:4",), PUBLIC),
        (
            "*",
            {"eth0": "10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7", "tun0": "172.30.0.9"},
            ("172.30.0.9:4", "10.0.0.4:4", "10.0.0.5:4", "10.0.0.6:4"),
            FIRST,
        ),
        ("*", {"eth0": "10.0.0.4", "ts0": "100.101.1.2"}, ("100.101.1.2:4", "10.0.0.4:4"), FIRST),
        (
            "*",
            {"eth0": "10.0.0.4 8.8.4.4 2600::4", "tun0": "100.101.1.2 fd7a:115c:a1e0::2"},
            ("8.8.4.4:4", "[2600::4]:4", "100.101.1.2:4", "10.0.0.4:4"),
            PUBLIC,
        ),
        ("*", {"eth0": "2600::4", "tun0": "fd7a:115c:a1e0::2"}, ("[2600::4]:4", "[fd7a:115c:a1e0::2]:4"), PUBLIC),
        ("*", {"eth0": "fd00::4", "tun0": "fd7a:115c:a1e0::2"}, ("[fd7a:115c:a1e0::2]:4",), FIRST),
    ],
)
def test_without_a_seed__public_addresses_first_and_those_of_containers_left_out(
    interfaces: Callable[..., None], listen: str, given: dict[str, str], expected: tuple[str, ...], why: str
) -> None:
    interfaces(**given)
    assert choose(listen, 4, [], {}) == Choice(expected, why)


def test_source_of_the_way_to_the_seed_expires_soon__the_lasting_address_is_taken(
    interfaces: Callable[..., None],
) -> None:
    interfaces(eth0="2600::4 2600::9", fleeting="2600::4")
    assert choose("*", 4, ["[::9]:1"], {}).addresses == ("[2600::9]:4",)


def test_seed_is_reached_by_a_vpn_of_ipv6__the_global_address_is_not_displaced(interfaces: Callable[..., None]) -> None:
    interfaces(eth0="10.0.0.4 2600::4", tun0="fd7a:115c:a1e0::2")
    found = choose("*", 4, ["[fd7a:115c:a1e0::9]:1"], {}).addresses
    assert found == ("[fd7a:115c:a1e0::2]:4", "[2600::4]:4", "10.0.0.4:4")


@pytest.mark.parametrize("listen", ["*", "172.17.0.2"])
def test_port_is_mapped__the_outside_address_comes_first_and_private_ones_are_left_out(
    interfaces: Callable[..., None], listen: str
) -> None:
    interfaces(eth0="172.17.0.2 2600::4")
    mapped = {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": "8.8.4.4"}
    found = choose(listen, 4710, ["good:4710"], mapped)
    own = ("[2600::4]:4710",) if listen == "*" else ()
    assert found == Choice(("8.8.4.4:33526", *own), "the port map of Vast.ai for TCP port 4710")


def test_port_is_mapped__the_address_of_a_vpn_stays(interfaces: Callable[..., None]) -> None:
    interfaces(eth0="172.17.0.2", tun0="10.8.0.2")
    mapped = {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": "8.8.4.4"}
    assert choose("*", 4710, [], mapped).addresses == ("8.8.4.4:33526", "10.8.0.2:4710")


def test_port_is_not_mapped__the_choice_of_other_hosts_and_what_is_lacking(interfaces: Callable[..., None]) -> None:
    interfaces(eth0="172.17.0.2")
    found = choose("*", 4710, [], {"VAST_TCP_PORT_22": "33526", "PUBLIC_IPADDR": "8.8.4.4"})
    assert found.addresses == ("172.17.0.2:4710",) and "Docker options" in found.lacks


# -- GD-103 ------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """eth0 10.0.0.4 with the default route, docker0 172.17.0.1, and a VPN 172.30.0.1 with a route to 172.30.0.9.

    The name "here" stands for eth0.
    """
    own = [ipaddress.ip_address(text) for text in ("10.0.0.4", "172.17.0.1", "172.30.0.1")]
    names = {"here": ["10.0.0.4"], "far.example": ["8.8.4.4"], "both.example": ["10.9.9.9", "8.8.4.4"]}

    def resolved(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        texts = names.get(name, [name] if name[0].isdigit() or ":" in name else [])
        return [ipaddress.ip_address(text) for text in texts]

    monkeypatch.setattr(addresses, "_own_addresses", lambda: own)
    monkeypatch.setattr(addresses, "_resolved", resolved)
    sources = {"172.30.0.9": "172.30.0.1"}
    monkeypatch.setattr(reach, "source_towards", lambda host, port: sources.get(host, "10.0.0.4"))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("address", "listen", "seeds", "seen"),
    [
        (
            "10.0.0.4:4710",
            "*",
            ["8.8.4.4:4710"],
            "10.0.0.4:4710 is a private address, and the seed 8.8.4.4:4710",
        ),
        (
            "here:4710",
            "*",
            ["10.0.0.9:1", "far.example:2"],
            "here:4710 is a private address, and the seed far",
        ),
        (
            "100.64.3.2:4710",
            "*",
            ["8.8.4.4:4710"],
            "an address of a VPN or of carrier-grade NAT, and the seed 8",
        ),
        (
            "[fd7a:115c:a1e0::2]:4710",
            "*",
            ["[2600::1]:4710", "100.64.3.9:1"],
            "is a private address, and the seed [2600",
        ),
        ("172.30.0.1:4710", "*", ["8.8.4.4:4710"], "172.30.0.1:4710 is a private address"),
        (
            "127.0.0.1:4710",
            "*",
            ["10.0.0.9:4710"],
            "127.0.0.1:4710 is loopback, and the seed 10.0.0.9",
        ),
        ("[::1]:4710", "*", ["[2600::1]:4710"], "[::1]:4710 is loopback"),
        (
            "172.17.0.1:4710",
            "*",
            ["10.0.0.9:4710"],
            "another interface than 10.0.0.4",
        ),
        ("172.17.0.1:4710", "10.0.0.4", ["10.0.0.9:4710"], "this peer listens only on 10.0.0.4"),
        ("nowhere.example:4710", "*", [], "nowhere.example does not resolve here"),
    ],
)
def test_address_that_other_hosts_hardly_reach_is_gd_103(
    address: str, listen: str, seeds: list[str], seen: str
) -> None:
    error = doubt(address, listen, seeds)
    assert error is not None and error.code == "GD-103" and seen in error.seen and "[network]" in error.do


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("address", "listen", "seeds"),
    [
        ("", "off", ["8.8.4.4:4710"]),  # outbound-only: no peer is told to dial it
        ("10.0.0.4:4710", "*", []),  # a founder has nothing to compare with
        ("10.0.0.4:4710", "*", ["10.0.0.9:4710"]),
        ("10.0.0.4:4710", "10.0.0.4", ["10.0.0.9:4710"]),
        ("10.0.0.4:4710", "*", ["10.0.0.4:4711", "127.0.0.1:4712"]),  # all on this host
        ("127.0.0.1:4711", "127.0.0.1", ["127.0.0.1:4710"]),
        ("1.1.1.1:4710", "*", ["8.8.4.4:4710"]),  # forwarded by a router, perhaps
        ("1.1.1.1:4710", "10.0.0.4", ["8.8.4.4:4710"]),
        ("both.example:4710", "*", ["8.8.8.8:4710"]),
        ("192.168.7.7:4710", "*", ["10.0.0.9:4710"]),  # of no interface here: the host of this container, perhaps
        ("10.0.0.4:4710", "*", ["gone.example:4710"]),
        ("100.64.3.2:4710", "*", ["8.8.4.4:4710", "100.127.0.9:4710"]),  # Tailscale, the seed by two ways
        ("[fd7a:115c:a1e0::2]:4710", "*", ["8.8.4.4:4710", "[fd7a:115c:a1e0::3]:4710"]),
        ("172.30.0.1:4710", "*", ["8.8.4.4:4710", "172.30.0.9:4710"]),  # WireGuard, the seed by two ways
    ],
)
def test_plausible_address_raises_no_doubt(address: str, listen: str, seeds: list[str]) -> None:
    assert doubt(address, listen, seeds) is None


def test_names_are_resolved_by_the_system_and_invalid_ones_skipped() -> None:
    assert doubt("127.0.0.1:4710", "127.0.0.1", ["localhost:4711"]) is None
    assert addresses._resolved("localhost")
    assert addresses._resolved("x" * 300) == []


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
        (["10.1.0.9:1", "100.64.0.1:1", "8.8.8.8:1"], ["8.8.8.8:1", "100.64.0.1:1", "10.1.0.9:1"]),
        (["not an address", "10.0.0.9:1", "10.0.0.9:1"], ["10.0.0.9:1", "not an address"]),
        (["10.0.0.9:1"], ["10.0.0.9:1"]),
    ],
)  # fmt: skip
def test_shared_private_network_first__then_ipv6_then_ipv4_and_names_then_the_rest(
    given: list[str], order: list[str]
) -> None:
    assert Reach(lambda: OWN, lambda ip: "").order(PEER, given, 0.0) == order


SOURCES = {"192.0.2.1": "10.0.0.4", "2001:db8::1": "2600::4"}
"""of the default routes"""


@pytest.mark.parametrize(
    ("sources", "given", "first"),
    [
        ({"100.101.1.9": "100.101.1.2"}, ["8.8.4.4:1", "[2600::1]:1", "100.101.1.9:1"], "100.101.1.9:1"),
        ({"10.8.0.9": "10.8.0.2"}, ["8.8.4.4:1", "10.8.0.9:1"], "10.8.0.9:1"),
        ({"fd7a:115c:a1e0::9": "fd7a:115c:a1e0::2"}, ["8.8.4.4:1", "[fd7a:115c:a1e0::9]:1"], "[fd7a:115c:a1e0::9]:1"),
        # A host whose own address is of carrier-grade NAT, or that sends all traffic into a VPN.
        ({"192.0.2.1": "100.72.0.4", "100.101.1.9": "100.72.0.4"}, ["100.101.1.9:1", "8.8.4.4:1"], "8.8.4.4:1"),
        ({"10.8.0.9": "10.0.0.4"}, ["10.8.0.9:1", "8.8.4.4:1"], "8.8.4.4:1"),
        ({"10.8.0.9": ""}, ["10.8.0.9:1", "8.8.4.4:1"], "8.8.4.4:1"),
        ({"8.8.4.4": "10.9.9.9"}, ["8.8.4.4:1", "[2600::1]:1"], "[2600::1]:1"),
    ],
)
def test_private_address_with_a_route_of_its_own_first(
    monkeypatch: pytest.MonkeyPatch, sources: dict[str, str], given: list[str], first: str
) -> None:
    monkeypatch.setattr(reach, "source_towards", lambda host, port: (SOURCES | sources)[host])
    assert Reach(list).order(PEER, given, 0.0)[0] == first


def test_address_that_worked_comes_first_for_that_peer_alone() -> None:
    made = Reach(lambda: OWN, lambda ip: "")
    addresses = ["8.8.4.4:1", "10.0.0.9:1", "[2600::1]:1"]
    made.remember(PEER, "8.8.4.4:1")
    assert made.order(PEER, addresses, 0.0)[0] == "8.8.4.4:1"
    assert made.order(bytes([1]) * 32, addresses, 0.0)[0] == "10.0.0.9:1"
    for number in range(MAX_WORKED):
        made.remember(number.to_bytes(32, "big"), "a:1")
    assert len(made._worked) == MAX_WORKED


def test_networks_of_this_host_are_read_again_after_a_while() -> None:
    networks = list(OWN)
    made = Reach(lambda: networks, lambda ip: "")
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


VAST = {"VAST_CONTAINERLABEL": "C.1234", "PUBLIC_IPADDR": "65.130.162.74", "VAST_TCP_PORT_22": "33520"}
RUNPOD = {"RUNPOD_POD_ID": "abc", "RUNPOD_PUBLIC_IP": "213.173.1.2", "RUNPOD_TCP_PORT_22": "10022"}


@pytest.mark.parametrize(
    ("environment", "address", "name"),
    [
        (VAST | {"VAST_TCP_PORT_4710": "33526"}, "65.130.162.74:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": " 65.130.162.74\n"}, "65.130.162.74:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_4710": "33526", "PUBLIC_IPADDR": "2600::1"}, "[2600::1]:33526", "Vast.ai"),
        (VAST | {"VAST_TCP_PORT_70000": "4710"}, "65.130.162.74:4710", "Vast.ai"),
        (RUNPOD | {"RUNPOD_TCP_PORT_4710": "10310"}, "213.173.1.2:10310", "RunPod"),
        (RUNPOD | {"RUNPOD_TCP_PORT_70001": "4710"}, "213.173.1.2:4710", "RunPod"),
    ],
)
def test_port_is_mapped__its_outside_address_and_the_marketplace(
    environment: dict[str, str], address: str, name: str
) -> None:
    found = port_map(4710, environment)
    assert found is not None and found.address == address
    assert found.why == f"the port map of {name} for TCP port 4710" and not found.do
    assert all(key.startswith(PREFIXES) for key in environment)


@pytest.mark.parametrize(
    ("environment", "why", "do"),
    [
        (VAST, "Vast.ai maps no outside port to TCP port 4710 (mapped ports: 22)", '"-p 4710:4710" to the Docker'),
        ({"VAST_CONTAINERLABEL": "C.1"}, "(mapped ports: none)", '"-p 4710:4710"'),
        (VAST | {"VAST_TCP_PORT_70000": "33527"}, "(mapped ports: 22, 70000)", '"-p 4710:4710"'),
        (RUNPOD, "RunPod maps no outside port to TCP port 4710", 'add 4710 to "Expose TCP Ports"'),
        ({"RUNPOD_POD_ID": "a", "RUNPOD_TCP_PORT_4710": "1"}, "RunPod set no RUNPOD_PUBLIC_IP", "needs a public IP"),
        (RUNPOD | {"RUNPOD_TCP_PORT_4710": "many"}, "port 'many', which is not an address", "Expose TCP Ports"),
    ],
)
def test_port_is_not_mapped__the_reason_and_what_opens_it(environment: dict[str, str], why: str, do: str) -> None:
    found = port_map(4710, environment)
    assert found is not None and not found.address
    assert why in found.why and do in found.do


@pytest.mark.parametrize("environment", [{}, {"PUBLIC_IPADDR": "1.2.3.4"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_no_marketplace__no_map(environment: dict[str, str]) -> None:
    assert port_map(4710, environment) is None
