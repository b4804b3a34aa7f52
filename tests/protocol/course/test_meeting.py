"""Which side follows when two meet again, as tables: what a peer hears, and what it concludes."""

import math

import pytest
from msgspec.structs import replace

from gossipdp.protocol.course.lag import BEHIND
from gossipdp.protocol.course.rules import NO_LINE, strength
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import Notice, ResyncBegan
from gossipdp.protocol.wire.messages import Line, State
from tests.protocol.course.course_rig import GREATER, HEARD, MINE, PERIOD, A, B, C, D, E, Side, record

VERDICTS = [
    (Line(1, 4, 1, 1, D), True),
    (Line(1, 2, 999, 99, D), False),
    (Line(1, 3, 151, 1, D), True),
    (Line(1, 3, 149, 99, D), False),
    (Line(1, 3, 150, 31, D), True),
    (Line(1, 3, 150, 30, A[:-1] + b"\x00"), True),
    (Line(1, 3, 150, 30, D), False),
    (Line(5, 0, 999, 99, D), False),
    (NO_LINE, False),
]


@pytest.mark.parametrize(("theirs", "follows"), VERDICTS)
def test_side_with_the_smaller_line_follows_once_it_has_heard(theirs, follows):
    b = Side()
    b.divide(D, E)
    assert b.line == MINE
    b.hear(D, theirs)
    b.hear(E, theirs)
    b.wait(HEARD - 2 * PERIOD)
    assert not b.course.resyncing
    b.wait(4 * PERIOD)
    assert b.course.resyncing == (Reason.APART if follows else None)
    assert [event.reason for event in b.of(ResyncBegan)] == ["apart"] * follows
    assert [event.code for event in b.of(Notice)] == ["GD-607"]


@pytest.mark.parametrize(("idle", "follows"), [((), False), ((A, C), True)])
def test_side_without_training_follows_one_that_trains_of_any_size(idle, follows):
    b = Side(waits=True)
    b.view.idle = set(idle)
    b.divide(D, E)
    assert b.line.trains != follows
    theirs = Line(1, 2, 1, 1, D)
    b.hear(D, theirs)
    b.hear(E, theirs)
    b.wait(HEARD + PERIOD)
    assert (b.course.resyncing is Reason.APART) == follows


def test_side_that_begins_to_train_after_it_was_named_says_so_and_wins_over_one_member():
    """A peer with company does not follow a single member. A member that trains does not follow an idle side."""
    b = Side(waits=True)
    b.view.idle = {A, C}
    b.divide(D)
    one = Line(1, 0, 500, 50, D)
    b.hear(D, one)
    b.wait(5 * HEARD)
    assert not b.line.trains and strength(b.line) < strength(one)
    b.view.idle = {A}
    b.wait(PERIOD)
    assert b.line == Line(2, 3, b.line.clock, b.line.rounds, B) and strength(b.line) > strength(one)
    b.wait(5 * HEARD)
    assert b.line.generation == 2 and not b.course.resyncing


def test_line_said_before_its_sender_noticed_counts_for_nothing():
    """It may be of an earlier reunion, when both peers were of one side."""
    b = Side()
    b.divide(D, E)
    b.hear(D, GREATER, apart=False)
    b.hear(E, GREATER, apart=True)
    b.wait(2 * HEARD)
    assert not b.course.resyncing
    b.hear(D, GREATER, apart=True)
    assert b.course.resyncing is Reason.APART


def test_one_peer_that_claims_to_be_many_is_not_followed():
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1_000_000), apart=True)
    b.wait(10 * HEARD)
    assert b.apart == {D} and not b.course.resyncing
    b.see(E, incarnation=2)
    assert b.apart == {D}, "and it holds no other member apart"


def test_one_peer_that_says_it_is_apart_is_not_followed_by_a_peer_with_company():
    """Otherwise every other peer would follow it: its word alone holds each of them apart."""
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1), apart=True)
    b.wait(10 * HEARD)
    assert b.apart == {D} and not b.course.resyncing
    assert b.line.members == 3, "it is a side as any other"


def test_side_that_has_grown_around_a_lone_peer_counts_all_its_members():
    """Otherwise neither side would follow: one voice proves nothing to a peer with company."""
    b = Side(side=())
    b.divide(D)
    b.see(A)
    b.hear(A, b.line, apart=False)
    b.hear(D, Line(1, 1, 999, 1, D))
    assert b.line.members == 1 and b.apart == {D}
    b.wait(5 * HEARD)
    assert b.line.members == 2 and not b.course.resyncing


@pytest.mark.parametrize(("silent", "members"), [((), 3), ((A,), 2), ((A, C), 1)])
def test_side_does_not_count_silent_suspects(silent, members):
    """They may have been cut off last, and belong to a third side."""
    b = Side()
    for peer in (A, C):
        b.see(peer, State.SUSPECT)
    b.view.silent.update(silent)
    b.divide(D, E)
    assert b.line.members == members


def test_peer_without_company_follows_one_that_says_it_was_stopped_for_long():
    b = Side(side=())
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1), apart=True)
    b.wait(2 * HEARD)
    assert b.course.resyncing is Reason.APART


REMNANTS = [
    ((A, C), (D,), Line(1, 5, 1, 1, D), False),
    ((A, C), (D, E), Line(1, 5, 1, 1, D), True),
    ((A, C), (D,), Line(1, 1, 1, 1, D), False),
    ((), (D,), Line(1, 1, 1, 1, D), False),
    ((), (D,), Line(1, 1, 999, 1, D), True),
    ((), (D, E), Line(1, 2, 1, 1, D), True),
    ((), (D,), Line(1, 4, 1, 1, D), False),
]


@pytest.mark.parametrize(("left", "there", "theirs", "follows"), REMNANTS)
def test_what_is_left_of_a_side_of_three_meets_what_is_left_of_another(left, there, theirs, follows):
    """One voice proves no side of several. So a peer left alone soon counts itself only."""
    b = Side()
    b.divide(D, E)
    assert b.line.members == 3
    for peer in {A, C, D, E} - {*left, *there}:
        b.see(peer, State.FAILED)
    for peer in there:
        b.hear(peer, theirs)
    b.wait(5 * HEARD)
    assert b.line.members == (3 if left else 1)
    assert (b.course.resyncing is Reason.APART) == follows


def test_member_that_gives_up_its_model_is_not_followed_until_it_has_the_other_one():
    b = Side()
    b.divide(D, E)
    for peer in (D, E):
        b.hear(peer, GREATER, lag=BEHIND)
    b.wait(4 * HEARD)
    assert not b.course.resyncing
    b.hear(D, GREATER)
    assert not b.course.resyncing, "one voice"
    b.hear(E, GREATER)
    assert b.course.resyncing is Reason.APART


def test_peer_left_alone_keeps_its_line_while_others_follow_it():
    b = Side()
    b.divide(D, E)
    for peer in (A, C):
        b.see(peer, State.FAILED)
    b.hear(D, Line(1, 2, 1, 1, D), lag=BEHIND)
    b.hear(E, Line(1, 2, 1, 1, D), lag=BEHIND)
    b.wait(4 * HEARD)
    assert b.line.members == 3 and not b.course.resyncing


def test_peer_that_cannot_hear_the_others_of_its_side_is_left_alone_too():
    """All three are outbound-only, so no other member of the side can ever hold its line."""
    b = Side()
    b.divide(D, E)
    assert b.line.members == 3
    for peer in (A, C):
        b.view.members[peer] = record(peer, outbound=True)
    b.view.me = record(B, outbound=True)
    theirs = Line(1, 2, 1, 1, D)
    for peer in (D, E):
        b.hear(peer, theirs)
    b.wait(5 * HEARD)
    assert b.line.members == 1 and b.course.resyncing is Reason.APART


def test_the_only_member_that_can_be_dialled_is_voice_enough_for_a_peer_behind_a_nat():
    b = Side()
    b.divide(D, E)
    for peer in (A, C, E):
        b.view.members[peer] = record(peer, outbound=True)
    b.hear(D, GREATER)
    b.wait(2 * HEARD)
    assert not b.course.resyncing, "one voice of several"
    b.view.me = record(B, outbound=True)
    b.hear(D, GREATER)
    b.wait(2 * HEARD)
    assert b.course.resyncing is Reason.APART


def test_both_sides_are_told_and_asked_again_until_all_is_one():
    b = Side()
    b.divide(D)
    b.outputs.messages.clear()
    b.wait(8 * PERIOD)
    assert len(b.said(D)) == 8 and all(word.apart and word.reply for word in b.said(D))
    assert b.said(A) and not any(word.apart for word in b.said(A))
    b.hear(D, b.line, apart=False)
    b.wait(2 * PERIOD)
    b.outputs.messages.clear()
    b.wait(20 * PERIOD)
    assert not b.outputs.messages and b.course.timer() == math.inf


def test_two_outbound_only_peers_that_are_apart_do_not_wait_for_each_other():
    """They cannot reach each other, and exchange nothing anyway."""
    b = Side()
    b.divide(D)
    assert b.sides.present() == [D]
    b.view.me = record(B, outbound=True)
    assert b.sides.present() == [D]
    b.view.members[D] = record(D, outbound=True)
    assert not b.sides.present() and b.apart == {D}


def test_member_held_apart_that_fails_and_comes_back_is_asked_again():
    """It may have changed sides meanwhile, and its message may be lost."""
    b = Side()
    b.divide(D)
    b.see(D, State.FAILED)
    b.wait(5.0)
    b.outputs.messages.clear()
    b.see(D)
    b.wait(PERIOD)
    assert b.apart == {D} and b.said(D)
