"""Owners by highest random weight (Thaler and Ravishankar 1998)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.data.rendezvous import Owners, elements
from tests.protocol.data.world import peer, weight

names = st.sets(st.integers(0, 40).map(lambda number: peer(number)[:8]), max_size=8)


@given(st.lists(names, min_size=1, max_size=5), st.integers(1, 200))
def test_owners_follow_from_the_members_whatever_came_before(steps, blocks):
    owners, fresh = Owners(blocks), Owners(blocks)
    for members in steps:
        owners.become(members)
    fresh.become(steps[-1])
    assert {member: owners.of(member) for member in owners} == {member: fresh.of(member) for member in fresh}


@given(names, st.integers(1, 200))
def test_every_block_has_one_owner_while_there_are_members(members, blocks):
    owners = Owners(blocks)
    owners.become(members)
    sets = [owners.of(member) for member in owners]
    assert sum(each.bit_count() for each in sets) == (blocks if members else 0)
    for block in range(blocks):
        heaviest = max(members, key=lambda member: weight(member, block, blocks), default=None)
        assert heaviest is None or owners.of(heaviest) >> block & 1


@given(names, st.integers(0, 40), st.integers(1, 200))
def test_a_member_that_joins_moves_only_what_it_takes_and_one_that_leaves_only_what_it_had(members, number, blocks):
    other = peer(number)[:8]
    one, two = Owners(blocks), Owners(blocks)
    one.become(members - {other})
    two.become(members | {other})
    assert all(one.of(member) & ~two.of(member) & ~two.of(other) == 0 for member in members - {other})


def test_blocks_are_shared_out_evenly():
    owners = Owners(4096)
    owners.become(peer(number)[:8] for number in range(16))
    assert all(200 < owners.of(member).bit_count() < 320 for member in owners)


def test_weights_are_the_same_everywhere():
    assert [weight(b"somebody", block, 9) for block in (0, 8)] == [82798350901062, 72255194013073]


@given(st.integers(0, 40), st.sets(st.integers(0, 199)), st.integers(1, 12))
def test_heaviest_blocks_are_found_without_a_look_at_each(number, chosen, count):
    me, others = peer(number)[:8], [peer(50 + other)[:8] for other in range(3)]
    owners, blocks = Owners(200), sum(1 << block for block in chosen)
    owners.become([me, *others])
    ordered = sorted(chosen, key=lambda block: weight(me, block, 200), reverse=True)
    assert set(elements(owners.heaviest(me, blocks, count))) == set(ordered[:count])
    if chosen:
        least = min(chosen, key=lambda block: max(weight(other, block, 200) for other in others))
        assert owners.lightest(others, blocks) == 1 << least
    shared = owners.shared(blocks, others)
    assert sum(shared.values()) == blocks
    assert all(
        weight(other, block, 200) == max(weight(each, block, 200) for each in others)
        for other in others
        for block in elements(shared[other])
    )
