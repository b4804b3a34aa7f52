"""What a peer that closes may conclude from its exchanges."""

import math

import pytest

from gossipdp.protocol.pairwise.closing import TOLERANCE, Agreement

A, B, C, D = (letter * 32 for letter in (b"a", b"b", b"c", b"d"))
NEAR, FAR = 0.5 * TOLERANCE, 0.5


def agreement(*exchanges, trained=1.0):
    """After these exchanges: partner and distance, all mixed whole; without a distance, an outlier."""
    judge = Agreement()
    if trained:
        judge.measured(trained)
    for partner, distance in exchanges:
        whole = math.nan if distance is None else distance
        judge.exchanged(partner, whole, 0.0 if distance is None else whole, outlier=distance is None, first=False)
    return judge


def holds(judge, *reached, size=0, all_near=False):
    return judge.holds(set(reached), size or 1 + len(reached), all_near=all_near)


@pytest.mark.parametrize(
    ("exchanges", "reached", "expected"),
    [
        ([(B, NEAR)], [B], False),
        ([(B, NEAR), (B, NEAR)], [B], True),
        ([(B, NEAR), (C, NEAR)], [B, C, D], True),
        ([(B, NEAR), (B, NEAR), (B, NEAR)], [B, C, D], False),  # one member alone may repeat what it hears
        ([(B, NEAR), (C, FAR), (D, NEAR)], [B, C, D], False),
        ([(B, None)], [B], False),
        ([(B, NEAR), (B, NEAR), (C, None)], [B, C], True),
        ([(B, NEAR), (C, NEAR), (D, None)], [B, C, D], True),
        ([(B, NEAR), (B, NEAR), (C, None), (D, None)], [B, C, D], False),  # two of four are no majority
        ([(B, None), (B, NEAR), (B, NEAR)], [B], True),  # it has come near
    ],
)
def test_peer_agrees_after_two_near_exchanges_with_two_members_as_part_of_a_majority(exchanges, reached, expected):
    assert holds(agreement(*exchanges), *reached) is expected


@pytest.mark.parametrize(
    ("exchanges", "reached", "expected"),
    [
        ([(B, NEAR)], [B], True),
        ([(B, NEAR)], [B, C], False),
        ([(B, NEAR), (C, None)], [B, C], True),
        ([(B, None)], [B], False),  # the only member that it can meet is broken
        ([], [], False),  # it can meet none
    ],
)
def test_without_a_schedule_every_member_that_it_meets_has_to_be_near(exchanges, reached, expected):
    assert holds(agreement(*exchanges), *reached, all_near=True) is expected


@pytest.mark.parametrize("outlier", [False, True])
def test_what_was_mixed_of_a_cut_or_refused_exchange_ends_the_agreement(outlier):
    judge = agreement((B, NEAR), (C, NEAR))
    judge.exchanged(D, math.nan, 0.5 * NEAR, outlier=outlier, first=False)
    assert holds(judge, B, C, D), "as little as two near anchors differ by"
    judge.exchanged(D, math.nan, FAR, outlier=outlier, first=False)
    assert not holds(judge, B, C, D)


def test_difference_that_a_partner_clips_is_not_near_however_little_of_it_is_mixed():
    judge = agreement((B, NEAR))
    judge.exchanged(C, FAR, 1e-9, outlier=False, first=False)
    assert not holds(judge, B, C)


def test_members_that_leave_after_the_agreement_take_nothing_from_it():
    judge = agreement((B, NEAR), (C, NEAR), (D, None))
    assert holds(judge, D, size=4), "B and C have left"


def test_alone_a_peer_holds_what_the_last_near_exchange_left_or_what_nobody_else_had():
    assert agreement().holds_alone(0)
    for exchanges, expected in (([(B, NEAR)], True), ([(B, FAR)], False), ([(B, None)], False)):
        judge = agreement(*exchanges)
        judge.begin_anew(set())
        assert judge.holds_alone(len(exchanges)) is expected


def test_usual_distance_is_that_of_the_training_and_the_largest_of_the_first_cycle_without_one():
    judge = Agreement()
    for distance, first in ((0.7, True), (0.9, True), (0.8, True), (5.0, False)):
        judge.exchanged(B, distance, distance, outlier=False, first=first)
    assert judge.usual == 0.9
    trained = agreement(trained=0.1)
    trained.exchanged(B, 5.0, 5.0, outlier=False, first=True)
    assert trained.usual == 0.1, "a member that lies does not widen the tolerance"
    trained.measured(0.2)
    assert trained.usual == pytest.approx(0.7 * 0.1 + 0.3 * 0.2)
