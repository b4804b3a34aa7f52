"""Which inbound connections without a proven member are closed, and when."""

import math

from gossipdp.runtime.network.unproven import Unproven, UnprovenConnection

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


def test_too_many__those_that_sent_least_are_closed_first() -> None:
    crowd = Crowd()
    crowd.accept(1, 2, 3, 4, 5)
    crowd.said = {1: 266, 2: 64, 4: 64}
    assert numbers(crowd.unproven.crowd()) == [3, 5]


def test_many_of_one_address_and_one_of_another__the_single_one_stays() -> None:
    crowd = Crowd(most=8)
    crowd.accept(1, origin="198.51.100.7")
    crowd.accept(*range(2, 12))
    crowd.said = dict.fromkeys(range(2, 12), 64)
    assert numbers(crowd.unproven.crowd()) == [2, 3, 4, 5, 6]


def test_more_addresses_than_shares__both_connections_of_the_host_that_sent_more_stay() -> None:
    crowd = Crowd(most=8)
    for descriptor in range(1, 9):
        crowd.accept(descriptor, origin=f"192.0.2.{descriptor}")
    crowd.accept(20, 21, origin="198.51.100.7")
    crowd.said = dict.fromkeys(range(1, 9), 266) | {20: 900, 21: 900}
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
