"""The service that tells others of other addresses of this host, and of what the router maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network.addresses import Choice
from gossipdp.runtime.network.router_mapping import Mapped
from peers import home, invites
from peers.own_addresses import OwnAddresses, wants_router
from tests.peers.daemon.homes_and_nodes import Start, shown

OWN = Choice(("192.168.1.7:4710", "[2600::7]:4710"), "its first address")


class Watched:
    """In the place of an AddressWatch or a RouterMapping."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.found: list[Choice | Mapped | str] = []

    def fileno(self) -> int:
        return self._descriptor

    def collect(self) -> Sequence[Choice | Mapped | str]:
        return self.found

    def close(self) -> None:
        pass


def test_changes_go_into_the_record_the_status_and_the_invite(where: Path, start: Start) -> None:
    node, told, watch = start(), Watched(0), Watched(1)
    config = home.read_config(where, {"network.name": "tiny", "preset": "local", "network.nat": "auto"}, {})
    service = OwnAddresses(node, where, config, OWN, 4710, {}, lambda *_: watch, lambda *_: told)  # type: ignore

    def after(fd: int, found: Choice | Mapped | str) -> tuple[list[str], str]:
        (told if fd == 0 else watch).found = [found]
        service.handle(fd)
        status = node.status.describe()
        seeds = invites.read_invite((where / "invite").read_text()).invite.seeds
        assert tuple(seeds[: len(status["addresses"])]) == tuple(status["addresses"])
        return status["addresses"], status["address_why"]

    assert after(0, Mapped("8.8.4.4:5000", "NAT-PMP")) == (
        ["8.8.4.4:5000", *OWN.addresses],
        "the port that the router maps, asked by NAT-PMP",
    )
    moved = Choice(("192.168.1.22:4710",), "its first address, because no seed is known")
    assert after(1, moved)[0] == ["8.8.4.4:5000", *moved.addresses]
    assert after(0, "192.168.1.1 does not answer NAT-PMP") == ([*moved.addresses], moved.why)
    assert "GD-103" in shown(node.status)[-1] and "does not answer NAT-PMP" in shown(node.status)[-1]
    assert after(1, OWN) == ([*OWN.addresses], OWN.why)
    service.close()


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
