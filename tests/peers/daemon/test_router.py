"""The service that advertises what the router maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network.addresses import Choice
from gossipdp.runtime.network.router_mapping import Mapped
from peers import home, invites
from peers.assembly import Router, wants_router
from tests.peers.daemon.homes_and_nodes import Start

OWN = Choice(("192.168.1.7:4710", "[2600::7]:4710"), "its first address")


class Told:
    """In the place of a RouterMapping."""

    found: Sequence[Mapped | str] = ()

    def __init__(self, *_: object) -> None:
        pass

    def fileno(self) -> int:
        return 0

    def collect(self) -> Sequence[Mapped | str]:
        return self.found

    def close(self) -> None:
        pass


def test_router_maps_a_port__it_goes_into_the_record_the_status_and_the_invite__and_leaves_with_it(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    config = home.read_config(where, {"network.name": "tiny", "preset": "local"}, {})
    router = Router(node, where, config, OWN, 4710, Told)  # type: ignore[arg-type]
    monkeypatch.setattr(Told, "found", [Mapped("8.8.4.4:5000", "NAT-PMP")])
    router.handle(0)
    status = node.status.describe()
    assert status["addresses"] == ["8.8.4.4:5000", *OWN.addresses]
    assert status["address_why"] == "the port that the router maps, asked by NAT-PMP"
    assert invites.read_invite((where / "invite").read_text()).invite.seeds[:1] == ("8.8.4.4:5000",)
    monkeypatch.setattr(Told, "found", ["192.168.1.1 does not answer NAT-PMP"])
    router.handle(0)
    assert node.status.describe()["addresses"] == list(OWN.addresses)
    assert "GD-103" in node.status.notices[-1] and "does not answer NAT-PMP" in node.status.notices[-1]
    router.close()


@pytest.mark.parametrize(
    ("flags", "addresses", "port", "wanted"),
    [
        ({"network.nat": "auto"}, OWN.addresses, 4710, True),
        ({}, OWN.addresses, 4710, False),
        ({"network.nat": "auto"}, ("8.8.4.4:4710",), 4710, False),
        ({"network.nat": "auto"}, (), 0, False),
        ({"network.nat": "auto", "network.advertise": "10.0.0.4"}, OWN.addresses, 4710, False),
    ],
)
def test_router_is_asked_only_if_wanted_and_needed(
    where: Path, flags: dict[str, Any], addresses: tuple[str, ...], port: int, wanted: bool
) -> None:
    config = home.read_config(where, {"network.name": "tiny", "preset": "local", **flags}, {})
    assert wants_router(config, Choice(addresses, ""), port) is wanted
