"""Which inbound connections without a proven member are closed, and when."""

import math

from gossipdp.runtime.network.limits import LIMITS
from gossipdp.runtime.network.unproven import MOST_BYTES, Unproven, UnprovenConnection

COOKIE = b"cookie"


class Crowd:
    """Connections numbered from 1; `said` has the bytes that each has sent."""

    def __init__(self, most: int = 4, patience: float = 3.0) -> None:
        self.said: dict[int, int] = {}
        self.unproven = Unproven(most, patience, lambda connection: self.said.get(connection.descriptor, 0))

    def accept(self, *descriptors: int, origin: str = "192.0.2.1", now: float = 0.0) -> None:
        for descriptor in descriptors:
            self.unproven.accepted(descriptor, COOKIE, origin, now)


def numbers(found: list[UnprovenConnection]) -> list[int]:
    return [connection.descriptor for connection in found]


def test_seconds_of_a_stranger_by_preset() -> None:
    assert {name: limits.unproven for name, limits in LIMITS.items()} == {"local": 3.5, "lan": 3.5, "wan": 10.5}


def test_connections_within_the_limit__none_is_closed() -> None:
    crowd = Crowd()
    crowd.accept(1, 2, 3, 4)
    assert crowd.unproven.crowd() == [] and len(crowd.unproven) == 4


def test_too_many_of_one_address__oldest_closed_down_to_three_quarters() -> None:
    crowd = Crowd()
    for descriptor in range(1, 8):
        crowd.accept(descriptor, now=float(descriptor))
    assert numbers(crowd.unproven.crowd()) == [1, 2, 3, 4]
    assert len(crowd.unproven) == 3


def test_too_many_that_sent_something__newcomers_that_sent_nothing_yet_stay() -> None:
    crowd = Crowd()
    crowd.accept(1, 2, 3, 4)
    crowd.said = dict.fromkeys(range(1, 5), 1700)
    crowd.accept(5, 6, now=1.0)
    assert numbers(crowd.unproven.crowd()) == [1, 2, 3]


def test_many_addresses_of_one_range__count_as_one_and_lose_first() -> None:
    crowd = Crowd(most=8)
    crowd.accept(20, 21, origin="198.51.100.7")
    for descriptor in range(1, 9):
        crowd.accept(descriptor, origin=f"192.0.2.{descriptor}", now=1.0)
    crowd.said = dict.fromkeys(range(1, 9), 1700)
    assert numbers(crowd.unproven.crowd()) == [1, 2, 3, 4]


def test_connection_sends_more_than_a_hello_or_an_invite__closed_at_the_next_look() -> None:
    crowd = Crowd()
    crowd.accept(1, 2, 3)
    crowd.unproven.proven(3, b"route")
    crowd.said = {1: MOST_BYTES, 2: MOST_BYTES + 1, 3: 1 << 30}
    assert numbers(crowd.unproven.large(1.0)) == [2] and crowd.unproven.next_look() == 1.1
    crowd.said[1] += 1
    assert crowd.unproven.large(1.05) == [] and numbers(crowd.unproven.large(1.1)) == [1]
    crowd.unproven.dismissed(3, b"route", 2.0, 0.5)
    assert crowd.unproven.large(2.1) == [], "what came on a link counts for nothing"


def test_many_of_one_address_and_one_of_another__the_single_one_stays() -> None:
    crowd = Crowd(most=8)
    crowd.accept(1, origin="198.51.100.7")
    crowd.accept(*range(2, 12))
    crowd.said = dict.fromkeys(range(2, 12), 64)
    assert numbers(crowd.unproven.crowd()) == [2, 3, 4, 5, 6]


def test_more_ranges_than_shares__both_connections_of_the_latest_host_stay() -> None:
    crowd = Crowd(most=8)
    for descriptor in range(1, 9):
        crowd.accept(descriptor, origin=f"192.0.{descriptor}.2")
    crowd.accept(20, 21, origin="198.51.100.7", now=1.0)
    assert numbers(crowd.unproven.crowd()) == [1, 2, 3, 4]


def test_time_over_without_a_member__closed_once() -> None:
    crowd = Crowd(patience=3.0)
    crowd.accept(1, now=10.0)
    assert crowd.unproven.next_timer() == 13.0
    assert crowd.unproven.late(12.9) == []
    assert numbers(crowd.unproven.late(13.0)) == [1]
    assert crowd.unproven.late(99.0) == [] and crowd.unproven.next_timer() == math.inf


def test_member_proven__never_closed_until_its_link_is_over() -> None:
    crowd = Crowd(patience=3.0)
    crowd.accept(1)
    crowd.unproven.proven(1, b"route")
    assert crowd.unproven.late(99.0) == []
    crowd.unproven.dismissed(1, b"of an earlier connection", 99.0, 0.5)
    assert crowd.unproven.next_timer() == math.inf
    crowd.unproven.dismissed(1, b"route", 99.0, 0.5)
    assert numbers(crowd.unproven.late(99.5)) == [1]


def test_descriptor_reused__the_new_connection_counts() -> None:
    crowd = Crowd()
    crowd.accept(1, origin="192.0.2.1")
    crowd.unproven.proven(1, b"route")
    crowd.accept(1, origin="192.0.2.2", now=5.0)
    assert [connection.origin for connection in crowd.unproven.late(99.0)] == ["192.0.2.2"]
    crowd.accept(2, origin="192.0.2.3")
    assert crowd.unproven.closed(2) == "192.0.2.3" and crowd.unproven.closed(2) == ""


def test_member_on_a_connection_about_to_close__kept() -> None:
    crowd = Crowd()
    crowd.accept(1)
    (late,) = crowd.unproven.late(99.0)
    crowd.unproven.readmitted(late, b"route")
    assert len(crowd.unproven) == 0 and crowd.unproven.late(999.0) == []
    assert crowd.unproven.closed(1) == "192.0.2.1"
