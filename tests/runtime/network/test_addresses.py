"""Which address a peer advertises, and why."""

from __future__ import annotations

import ipaddress

import pytest

from gossipdp.runtime.network import addresses
from gossipdp.runtime.network.addresses import advertised, doubt


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1", "127.0.0.1:4710"), ("10.1.2.3", "10.1.2.3:4710"), ("[fd00::1]", "[fd00::1]:4710")],
)
def test_peer_that_listens_on_one_address_advertises_it(listen: str, address: str) -> None:
    assert advertised(listen, 4710, ["192.0.2.1:4710"]) == (address, "the address it listens on")


def test_peer_that_listens_everywhere_advertises_the_address_from_which_it_reaches_its_seed() -> None:
    address, why = advertised("*", 4711, ["127.0.0.1:4710"])
    assert address == "127.0.0.1:4711" and "127.0.0.1:4710" in why


def test_seed_without_an_address_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_source_towards", lambda host, port: "10.9.8.7" if host == "good" else "")
    assert advertised("*", 1, ["bad:2", "good:3"])[0] == "10.9.8.7:1"


def test_seed_that_is_no_valid_name_is_skipped() -> None:
    assert advertised("*", 1, ["gpu1..internal:2", f"{'g' * 64}:2", "127.0.0.1:3"])[0] == "127.0.0.1:1"


def test_without_a_seed_a_public_address_comes_before_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    from types import SimpleNamespace

    def interface(*texts: str) -> list[SimpleNamespace]:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [SimpleNamespace(family=families[":" in text], address=text) for text in texts]

    found = {"lo": interface("127.0.0.1", "::1"), "eth0": interface("10.0.0.4", "fe80::1%eth0", "8.8.4.4")}
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: found)
    assert advertised("*", 4710, []) == ("8.8.4.4:4710", "its first public address")
    found["eth0"] = interface("10.0.0.4")
    assert advertised("0.0.0.0", 4710, [])[0] == "10.0.0.4:4710"
    found.pop("eth0")
    assert advertised("*", 4710, [])[0] == "127.0.0.1:4710"


# -- GD-103 ------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two interfaces: eth0 10.0.0.4 with the default route, and docker0 172.17.0.1; the name "here" stands for eth0."""
    own = [ipaddress.ip_address(text) for text in ("10.0.0.4", "172.17.0.1")]
    names = {"here": ["10.0.0.4"], "far.example": ["8.8.4.4"], "both.example": ["10.9.9.9", "8.8.4.4"]}

    def resolved(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        texts = names.get(name, [name] if name[0].isdigit() or ":" in name else [])
        return [ipaddress.ip_address(text) for text in texts]

    monkeypatch.setattr(addresses, "_own_addresses", lambda: own)
    monkeypatch.setattr(addresses, "_resolved", resolved)
    monkeypatch.setattr(addresses, "_source_towards", lambda host, port: "10.0.0.4")


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
        ("100.64.3.2:4710", "*", ["8.8.4.4:4710"], "100.64.3.2:4710 is a private address"),
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
        ("172.17.0.1:4710", "10.0.0.4", ["10.0.0.9:4710"], "this peer listens on 10.0.0.4 only"),
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
    ],
)
def test_plausible_address_raises_no_doubt(address: str, listen: str, seeds: list[str]) -> None:
    assert doubt(address, listen, seeds) is None


def test_names_are_resolved_by_the_system_and_invalid_ones_skipped() -> None:
    assert doubt("127.0.0.1:4710", "127.0.0.1", ["localhost:4711"]) is None
    assert addresses._resolved("localhost")
    assert addresses._resolved("x" * 300) == []
