"""Which link loses its place when all are taken."""

import math

import pytest

from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.host_port import address_range
from gossipdp.runtime.network.places import loser

NOW, IDLE = 100.0, 60.0
CROWD, ELSEWHERE = "192.0.2.9", "198.51.100.7"


def link(number: int, host: str = CROWD, *, opened: float = 0.0, used: float = NOW) -> Link:
    made = Link(host, host, inbound=True, now=opened)
    made.verify(bytes([number]), 1, b"", b"", 0)
    made.use(used)
    return made


def lost(links: list[Link], known: dict[int, float], host: str = ELSEWHERE) -> int | None:
    """The number of the link that loses its place to a newcomer at `host`."""
    found = loser(links, host, {bytes([number]): seconds for number, seconds in known.items()}, NOW, IDLE)
    return None if found is None else found.peer[0]


def test_young_keys_use_every_place__the_youngest_loses_it_and_no_member_known_before() -> None:
    links = [link(number) for number in range(4)]
    assert lost(links, {0: math.inf, 1: 50.0, 2: 20.0, 3: 40.0}) == 2
    assert lost(links, {0: math.inf, 1: 50.0, 2: 20.0, 3: 40.0}, CROWD) == 2
    assert lost(links, dict.fromkeys(range(4), math.inf)) is None


def test_young_keys_of_one_range_of_addresses__lose_before_a_younger_one_from_elsewhere() -> None:
    links = [link(0, "192.0.2.1"), link(1, "192.0.2.2"), link(2, "192.0.2.3"), link(3, "203.0.113.5")]
    assert lost(links, {0: 90.0, 1: 80.0, 2: 70.0, 3: 10.0}) == 2


def test_unused_links__lose_their_place_first_the_longest_unused_of_all() -> None:
    links = [link(0, used=50.0), link(1, used=40.0), link(2), link(3)]
    assert lost(links, {0: math.inf, 1: math.inf}) == 1
    assert lost([link(0, used=50.0), link(1), link(2)], {0: math.inf}) == 1, "young keys are the most: one of them"
    assert lost([link(0, used=50.0), link(1), link(2, used=60.0)], {0: math.inf}) == 2


def test_all_links_came_up_just_now__all_keep_their_places() -> None:
    assert lost([link(number, opened=NOW - 4.0) for number in range(3)], {}) is None


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.9", "192.0.2.0/24"),
        ("2600:1:2:3:4::5", "2600:1:2:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("name", "name"),
    ],
)
def test_range_of_an_address(address: str, found: str) -> None:
    assert address_range(address) == found
