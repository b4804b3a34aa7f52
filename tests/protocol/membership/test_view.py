"""The table of members: which count as live, which are picked, and what is kept of members never heard."""

import hashlib
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership import view as module
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.view import LIVE, View
from gossipdp.protocol.wire.messages import Member, State
from tests.protocol.membership.machines import peer_id


def record(number: int, state: State = State.ALIVE, refutation: int = 0, address: str = "10.0.0.1:4710") -> Member:
    peer = hashlib.blake2b(number.to_bytes(4, "big"), digest_size=32).digest()
    return Member(peer, f"p{number}", address, 1, refutation, state)


def view(*records: Member) -> View:
    made = View(LAN, record(0), Admission(peer_id(0)))
    for item in records:
        made.put(item, 1.0)
    return made


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from(list(State))), max_size=60))
def test_counts_lists_and_sums_are_those_of_the_records_whatever_came(puts: list[tuple[int, State]]) -> None:
    made = View(LAN, record(0), Admission(peer_id(0)))
    for times, (number, state) in enumerate(puts):
        made.put(record(number, state, times), float(times))
        if times % 20 == 19:
            for peer in made.forget(times + LAN.forget_after + 5.0):
                assert peer not in made.members
    others = [member for peer, member in made.members.items() if peer != made.me.id]
    live = sorted((member for member in others if member.state in LIVE), key=lambda member: member.id)
    assert made.alive() == live and made.count == len(live) + 1
    assert set(made.dead) == {member.id for member in others if member.state not in LIVE}
    assert made.digests.members() == sorted(made.members)
    assert made.digests.digest() == view(*others).digests.digest()


def test_live_members_are_picked_equally_often_and_no_other() -> None:
    made = view(*(record(number) for number in range(1, 5)), record(5, State.FAILED), record(6, State.SUSPECT))
    random = Random(1)
    picked = Counter(member.name for _ in range(5000) if (member := made.pick(random)) is not None)
    assert set(picked) == {"p1", "p2", "p3", "p4", "p6"} and min(picked.values()) > 900


def test_the_one_that_can_be_reached_is_picked_among_many_that_cannot() -> None:
    made = view(*(record(number, State.LEFT) for number in range(1, 60)), record(60), record(61, address=""))
    assert {made.pick(Random(seed)) for seed in range(20)} == {record(60)}
    made.hear(record(61).id, 2.0)
    assert len({made.pick(Random(seed)) for seed in range(40)}) == 2


def test_no_member_is_picked_when_none_can_be_reached() -> None:
    assert view().pick(Random(1)) is None
    assert view(record(1, address=""), record(2, State.FAILED)).pick(Random(1)) is None


def test_nothing_is_kept_of_members_never_contacted() -> None:
    made = view(*map(record, range(1, 50)))
    seen = made.contacts.seen
    assert not seen and not made.contacts.linked(record(3).id)
    assert made.hear(record(3).id, 2.0) and seen[record(3).id].heard == 2.0 and made.contacts.linked(record(3).id)
    assert not made.hear(record(99).id, 2.0) and not made.hear(made.me.id, 2.0) and len(seen) == 1


def test_failed_member_at_a_live_ones_address_is_not_dialled_there__its_host_was_rebuilt() -> None:
    made = view(
        record(1, State.FAILED, address="10.0.0.7:4710"),
        record(2, State.FAILED, address="10.0.0.8:4710"),
        record(3, State.FAILED),  # where this peer itself is now
        record(4, State.SUSPECT, address="10.0.0.9:4710"),
        record(5, address="10.0.0.7:4710"),
        record(6, State.FAILED, address=""),
        record(7, address=""),
    )
    assert made.lost_elsewhere() == [record(number).id for number in (2, 4, 6)]


def test_own_record_is_in_the_digest_and_changes_with_it() -> None:
    made, other = view(record(1)), view(record(1))
    assert made.digests.digest() == other.digests.digest()
    made.change_me(replace(made.me, refutation=3))
    assert made.digests.digest() != other.digests.digest()


def test_addresses_of_the_failed_are_remembered_when_they_are_forgotten_and_those_of_the_departed_are_not() -> None:
    made = view(record(1, State.FAILED), record(2, State.LEFT), record(3, State.FAILED))
    for number in (1, 2):
        made.hear(record(number).id, 0.0)
    assert len(made.forget(LAN.forget_after + 1.0)) == 3
    assert list(made.remembered) == [record(1).id], "no other member that failed has ever spoken"


def test_remembered_addresses_are_bounded_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    made = view()
    made.remember(record(number) for number in range(1, 6))
    assert list(made.remembered) == [record(number).id for number in (3, 4, 5)]
