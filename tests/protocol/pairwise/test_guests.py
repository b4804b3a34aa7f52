"""Outbound-only members are guests of dialable peers, beside the exchanges that a round wants."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.pairwise.matching import MOST_GUESTS, guests_per_round
from tests.protocol.pairwise.matching_rig import ALIVE, IDS, matching


def test_guests_are_accepted_once_the_own_exchanges_are_made_and_count_for_no_round():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    assert not machine.accepts(IDS[0], counts=True, steps=True, guests=0), (
        "they ask first, and are none of the next round"
    )
    for _ in range(2):
        assert machine.accepts(IDS[0], counts=True, steps=True, guests=2)
        machine.matched(guest=True)
    assert not machine.accepts(IDS[0], counts=True, steps=True, guests=2) and machine.accepts(
        IDS[0], counts=True, steps=True
    )
    assert (machine.wanted, machine.ahead) == (0, 0)
    machine.want(1, 1.0)
    assert machine.wanted == 1 and machine.accepts(IDS[0], counts=True, steps=True, guests=2)
    machine.matched(guest=True)
    assert machine.wanted == 0, "a wanted exchange may be one with a guest"
    assert machine.accepts(IDS[0], counts=True, steps=True, guests=1)


def test_guest_is_no_last_partner():
    machine = matching()
    a, b = IDS[:2]
    machine.want(1, 0.0)
    machine.matched()
    machine.parted(a, 60.0)
    machine.matched(guest=True)
    machine.parted(b, 1.0)
    machine.want(1, 10.0)
    assert machine.candidate(ALIVE[:2], {}, (), lambda peer: None, 12.0) == b


def test_guest_exchange_that_mixes_nothing_leaves_the_own_exchanges_unchanged():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    machine.matched(guest=True)
    machine.want(1, 1.0)
    machine.unmatched(b"g", 1.0)
    assert machine.wanted == 1 and not machine.refusals
    assert machine.candidate(ALIVE[:1], {}, (), lambda peer: None, 1.0) is not None, "no pause either"


@pytest.mark.parametrize(
    ("dialled", "others", "guests", "turns"),
    [(4, 0, 0, 1), (60, 4, 1, 1), (2, 2, 1, 1), (2, 3, 2, 1), (1, 4, 4, 1), (1, 5, MOST_GUESTS, 2), (2, 62, 4, 8)],
)
def test_guests_of_a_round_are_the_outbound_only_members_per_dialable_one(dialled, others, guests, turns):
    members = ALIVE[:1] * dialled
    members += [replace(ALIVE[0], address="")] * others
    assert guests_per_round(members) == (guests, turns)
