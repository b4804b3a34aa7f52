"""A member that wastes time is left alone for at least as long while others are there. Repetitions double that."""

import math

import pytest

from gossipdp.protocol.pairwise import partner_history
from gossipdp.protocol.pairwise.partner_history import LONGEST, SHORTEST, PartnerHistory

A, B, C = (bytes([letter]) * 32 for letter in b"abc")


def wait(*exchanges, pace=1.0):
    """Seconds for which A is left alone after these (chunks, seconds) in a row."""
    known = PartnerHistory()
    for chunks, seconds in exchanges:
        known.parted(A, chunks, seconds, pace * chunks if chunks else 0.0, 100.0)
    return next(n / 100 for n in range(100 * 700) if not known.left_alone([A, B], 100.0 + n / 100, asks=False))


@pytest.mark.parametrize(
    ("exchanges", "seconds"),
    [
        ([], 0.0),
        ([(0, 3.0)], 3.0),
        ([(0, 3.0), (0, 3.0), (0, 3.0)], 12.0),
        ([(0, 0.0)], SHORTEST),
        ([(0, 0.001)] * 5, 16 * SHORTEST),
        ([(0, 15.0)] * 9, LONGEST),
        ([(0, 3.0), (2, 2.0)], 0.0),  # one that is worth its time
        ([(2, 8.0)], 0.0),  # four times as long as usual
        ([(2, 11.0)], 3.0),
        ([(2, 11.0)] * 4, 3.0),  # it is slow, and gets somewhere
        ([(0, 3.0), (2, 11.0), (0, 3.0)], 3.0),
        ([(0, 600.0)], 600.0),  # longer than earlier waste alone could cause
        ([(2, 608.0)] * 2, 600.0),
    ],
)
def test_wasting_member_is_left_alone_for_this_long(exchanges, seconds):
    assert wait(*exchanges) == pytest.approx(seconds, abs=0.011)


def test_only_an_exchange_without_chunks_is_waste_while_the_pace_is_unknown():
    assert wait((1, 50.0), pace=math.inf) == 0.0 and wait((0, 2.0), pace=math.inf) == pytest.approx(2.0, abs=0.011)


def test_no_member_is_left_alone_if_all_would_be():
    known = PartnerHistory()
    known.parted(A, 0, 5.0, 0.0, 0.0)
    assert known.left_alone([A, B], 1.0, asks=False) == {A: "slow"} and not known.left_alone([A], 1.0, asks=False)
    known.parted(B, 0, 5.0, 0.0, 0.0)
    assert not known.left_alone([A, B], 1.0, asks=False) and known.left_alone([A, B, C], 1.0, asks=False) == {
        A: "slow",
        B: "slow",
    }


@pytest.mark.parametrize(
    ("appears", "now", "share"),
    [
        (0, 0, 1.0),  # found at the start
        (9, 9, 1.0),  # all are young
        (10, 10, 0.1),
        (30, 30, 0.1),
        (30, 34, 0.5),
        (30, 39, 1.0),
        (30, 90, 1.0),
    ],
)
def test_weight_of_a_newcomer_rises_with_the_rounds_since_it_appeared(appears, now, share):
    known = PartnerHistory()
    known.appeared(A, appears, {A})
    known.appeared(A, now, {A})
    assert known.share(A, now) == pytest.approx(share)


def test_member_unknown_to_membership_is_a_newcomer():
    assert PartnerHistory().share(A, 50) == 0.1 and PartnerHistory().share(A, 3) == 1.0


def test_forgotten_members_make_room_for_newcomers_and_known_ones_do_not(monkeypatch):
    monkeypatch.setattr(partner_history, "MOST_KNOWN", 2)
    known = PartnerHistory()
    for peer, members in ((A, {A}), (B, {A, B}), (C, {A, C})):
        known.appeared(peer, 20, members)
    assert [known.share(peer, 40) for peer in (A, B, C)] == [1.0, 0.1, 1.0]


def test_partners_met_in_a_round():
    known = PartnerHistory()
    known.met(A, 3)
    known.met(B, 4)
    assert known.meets(3) == {A} and known.meets(4) == {B} and not known.meets(5)


def test_offers_up_to_the_latest_accepted_were_answered_before():
    known = PartnerHistory()
    known.accepted(A, 7)
    assert known.dealt_with(A, 6) and known.dealt_with(A, 7)
    assert not known.dealt_with(A, 8) and not known.dealt_with(B, 7)


def test_member_heard_of_longest_ago_makes_room(monkeypatch):
    monkeypatch.setattr(partner_history, "MOST", 2)
    known = PartnerHistory()
    for peer in (A, B, A, C):
        known.met(peer, 1)
        known.accepted(peer, 9)
        known.parted(peer, 0, 5.0, 0.0, 0.0)
    assert known.meets(1) == {A, C} and not known.dealt_with(B, 9)
    assert set(known.left_alone([A, B, C], 1.0, asks=False)) == {A, C}


def test_member_does_not_answer_offers__asked_less_and_less_often_and_its_own_offers_are_taken():
    known = PartnerHistory()
    pauses = []
    for number in range(8):
        now = 100.0 * number
        known.unanswered(A, 1.0, now)
        assert not known.left_alone([A, B], now, asks=False)
        pauses.append(next(n for n in range(100) if not known.left_alone([A, B], now + n + 0.5, asks=True)))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    known.parted(A, 1, 1.0, 1.0, 800.0)
    known.unanswered(A, 1.0, 900.0)
    assert known.left_alone([A, B], 900.5, asks=True) == {A: "silent"} and not known.left_alone(
        [A, B], 901.5, asks=True
    )


def test_stranger_does_not_answer__members_that_mixed_come_first_until_a_stranger_does():
    known = PartnerHistory()
    known.parted(A, 1, 1.0, 1.0, 0.0)
    assert known.comes_first(A) and known.comes_first(B)
    known.unanswered(B, 1.0, 1.0)
    assert known.comes_first(A) and not known.comes_first(B) and not known.comes_first(C)
    known.parted(A, 1, 1.0, 1.0, 2.0)
    assert not known.comes_first(C)
    known.unanswered(A, 1.0, 3.0)
    assert not known.comes_first(A), "it may have gone silent"
    known.parted(C, 1, 1.0, 1.0, 4.0)
    assert known.comes_first(B)
