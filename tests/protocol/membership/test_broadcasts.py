"""Updates to spread (SWIM section 4.1): their queue, how often each is passed on, and what that may cost."""

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.protocol.budgets import TokenBucket
from gossipdp.protocol.membership.broadcasts import ROOM, Broadcasts, pages, record_size
from gossipdp.protocol.membership.dissemination import transmit_limit
from gossipdp.protocol.wire.messages import MAX_ADDRESS, MAX_OTHERS, MAX_RECORDS, Member, State


def record(number: int, refutation: int = 0, name: str = "peer") -> Member:
    return Member(number.to_bytes(32, "big"), name, "10.0.0.1:4710", 1, refutation, State.ALIVE)


def queue(*records: Member) -> Broadcasts:
    broadcasts = Broadcasts()
    for item in records:
        broadcasts.put(item)
    return broadcasts


def test_update_sent_least_often_goes_first_and_among_equals_the_newest() -> None:
    broadcasts = queue(record(1), record(2))
    assert broadcasts.take(1, ROOM, 3) == [record(2)]
    broadcasts.put(record(3))
    assert broadcasts.take(2, ROOM, 3) == [record(3), record(1)]
    assert broadcasts.take(3, ROOM, 3) == [record(3), record(1), record(2)]


def test_update_is_dropped_after_its_limit_of_transmissions() -> None:
    broadcasts = queue(record(1))
    assert [len(broadcasts.take(5, ROOM, 3)) for _ in range(4)] == [1, 1, 1, 0]
    assert len(broadcasts) == 0


def test_limit_that_shrinks_with_the_network_drops_updates_sent_often_enough() -> None:
    broadcasts = queue(record(1))
    for _ in range(5):
        broadcasts.take(1, ROOM, 8)
    assert broadcasts.take(1, ROOM, 4) == [record(1)] and len(broadcasts) == 0


def test_newer_record_of_a_member_replaces_the_older_and_starts_anew() -> None:
    broadcasts = queue(record(1), record(2))
    broadcasts.take(2, ROOM, 4)
    broadcasts.put(record(1, refutation=1))
    assert len(broadcasts) == 2
    assert broadcasts.take(2, ROOM, 4) == [record(1, refutation=1), record(2)]


def test_peek_spends_nothing() -> None:
    broadcasts = queue(record(1), record(2))
    assert broadcasts.peek(1, ROOM) == broadcasts.peek(1, ROOM) == [record(2)]
    assert broadcasts.take(2, ROOM, 1) == [record(2), record(1)] and broadcasts.peek(2, ROOM) == []


def test_discarded_member_is_in_no_message() -> None:
    broadcasts = queue(record(1), record(2))
    broadcasts.take(1, ROOM, 4)
    broadcasts.discard(record(2).id)
    broadcasts.discard(record(9).id)
    assert broadcasts.take(4, ROOM, 4) == [record(1)]


def test_less_urgent_update_goes_after_the_others_and_is_sent_less_often() -> None:
    broadcasts = queue(record(1))
    broadcasts.put(record(2), 2)
    assert broadcasts.peek(2, ROOM) == [record(1), record(2)]
    assert [len(broadcasts.take(2, ROOM, 4)) for _ in range(5)] == [2, 2, 1, 1, 0]


def test_update_that_other_members_send_is_dropped_at_its_limit() -> None:
    broadcasts = queue(record(1), record(2))
    broadcasts.count(record(2).id, 2, 4)
    assert broadcasts.peek(2, ROOM) == [record(1), record(2)]
    broadcasts.count(record(2).id, 2, 4)
    broadcasts.count(record(9).id, 1, 4)
    assert broadcasts.peek(2, ROOM) == [record(1)] and len(broadcasts) == 1


def test_suspects_accusers_take_room() -> None:
    accused = replace(record(1), accusers=tuple(bytes([number]) * 32 for number in range(8)))
    assert record_size(accused) == record_size(record(1)) + 8 * 34
    assert len(msgpack.packb(msgspec.structs.astuple(accused))) <= record_size(accused)


def test_updates_that_do_not_fit_wait_for_the_next_message() -> None:
    broadcasts = queue(*(record(number) for number in range(5)))
    room = 2 * record_size(record(0)) + 1
    assert len(broadcasts.take(5, room, 1)) == 2 and len(broadcasts) == 3
    assert broadcasts.take(5, 10, 1) == [] and len(broadcasts) == 3


@given(st.text(max_size=48), st.text(max_size=80), st.text(max_size=16), st.integers(0, 2**32 - 1))
def test_record_never_takes_more_than_its_stated_size(name: str, address: str, software: str, number: int) -> None:
    member = Member(bytes(32), name, address, number, number, State.LEFT, 255, software)
    assert len(msgpack.packb(msgspec.structs.astuple(member))) <= record_size(member)


@given(st.lists(st.text(max_size=48), max_size=60))
def test_pages_hold_all_records_each_with_the_senders_own_first(names: list[str]) -> None:
    me, records = record(10**6), [record(number, name=name) for number, name in enumerate(names)]
    made = pages(me, records)
    assert [item for page in made for item in page[1:]] == records
    for page in made:
        assert page[0] == me and len(page) <= MAX_RECORDS and sum(map(record_size, page)) <= ROOM


def test_record_with_all_addresses_fits_its_bound() -> None:
    member = replace(record(1), address="a" * MAX_ADDRESS, others=("é" * MAX_ADDRESS,) * MAX_OTHERS)
    assert len(msgpack.packb(msgspec.structs.astuple(member))) <= record_size(member)


@pytest.mark.parametrize(
    ("multiplier", "members", "times"), [(4, 1, 4), (4, 9, 4), (4, 10, 8), (4, 99, 8), (4, 100, 12), (3, 10, 6)]
)
def test_transmit_limit(multiplier: int, members: int, times: int) -> None:
    assert transmit_limit(multiplier, members) == times


def test_full_at_first_it_refills_at_its_rate_and_never_beyond() -> None:
    budget = TokenBucket(100.0, 400.0, 5.0)
    assert budget.left(5.0) == 400.0 and budget.ready(5.0) == 5.0
    budget.spend(300.0, 5.0)
    assert [budget.left(now) for now in (5.0, 6.0, 7.5, 9.0, 50.0)] == [100.0, 200.0, 350.0, 400.0, 400.0]


def test_overdrawn_it_says_when_nothing_is_owed_any_more() -> None:
    budget = TokenBucket(100.0, 400.0, 0.0)
    budget.spend(650.0, 0.0)
    assert budget.left(0.0) == -250.0 and budget.ready(0.0) == 2.5 and budget.ready(1.0) == 2.5
    assert budget.left(2.5) == pytest.approx(0.0) and budget.ready(3.0) == 3.0


def test_debt_has_an_end() -> None:
    budget = TokenBucket(100.0, 400.0, 0.0)
    for _ in range(50):
        budget.spend(300.0, 0.0)
    assert budget.left(0.0) == -400.0 and budget.ready(0.0) == 4.0


def test_time_that_runs_backwards_fills_nothing() -> None:
    budget = TokenBucket(100.0, 400.0, 10.0)
    budget.spend(400.0, 10.0)
    assert budget.left(3.0) == 0.0 and budget.left(10.0) == 0.0 and budget.left(11.0) == 100.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 500.0)), max_size=60))
def test_spending_only_what_is_left_stays_within_rate_and_burst(steps: list[tuple[float, float]]) -> None:
    budget, now, spent = TokenBucket(100.0, 400.0, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if amount <= budget.left(now):
            budget.spend(amount, now)
            spent += amount
    assert spent <= 400.0 + 100.0 * now + 1e-6
