"""Which address a peer advertises, and why."""

from __future__ import annotations

import pytest

from gossipdp.runtime import addresses
from gossipdp.runtime.addresses import advertised


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1", "127.0.0.1:4710"), ("10.1.2.3", "10.1.2.3:4710"), ("[fd00::1]", "[fd00::1]:4710")],
)
def test_a_peer_that_listens_on_one_address_advertises_it(listen: str, address: str) -> None:
    assert advertised(listen, 4710, ["192.0.2.1:4710"]) == (address, "the address it listens on")


def test_a_peer_that_listens_everywhere_advertises_where_it_would_reach_its_seed_from() -> None:
    address, why = advertised("*", 4711, ["127.0.0.1:4710"])
    assert address == "127.0.0.1:4711" and "127.0.0.1:4710" in why


def test_a_seed_that_has_no_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_source_towards", lambda host, port: "10.9.8.7" if host == "good" else "")
    assert advertised("*", 1, ["bad:2", "good:3"])[0] == "10.9.8.7:1"


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
