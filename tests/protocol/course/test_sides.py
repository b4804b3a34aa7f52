"""Which members are held apart, and which line a side holds, as tables."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.course.meeting import LAST
from gossipdp.protocol.course.rules import NO_LINE, strength
from gossipdp.protocol.course.sides import MAX_LIVES
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.membership.view import MAX_MEMBERS
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Line, Progress, State
from tests.protocol.course.course_rig import (
    FROZEN,
    GREATER,
    HEARD,
    LONG,
    PERIOD,
    ROUNDS,
    A,
    B,
    C,
    D,
    E,
    F,
    Side,
    record,
)

# -- the order of lines ----------------------------------------------------------------------------------------


def test_more_members_then_clock_then_rounds_then_the_lower_id():
    lines = [Line(1, 3, 9, 9, A), Line(1, 4, 1, 9, B), Line(1, 4, 2, 1, B), Line(1, 4, 2, 2, C), Line(1, 4, 2, 2, A)]
    assert sorted(lines, key=strength) == lines
    for one, other in permutations(lines, 2):
        assert (strength(one) > strength(other)) != (strength(other) > strength(one))


def test_side_that_trains_is_more_than_one_that_holds_copies():
    assert strength(Line(1, 2, 1, 1, A)) > strength(Line(1, 9, 9, 9, B, trains=False))


def test_line_named_by_hearsay_is_less_than_a_side_of_one():
    assert strength(Line(9, 0, 999, 99, A)) < strength(Line(1, 1, 0, 0, B)) and strength(NO_LINE) < strength(GREATER)


# -- apart or not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "apart"), [(0, False), (ROUNDS - 1, False), (ROUNDS, True), (1000, True)])
def test_lost_member_is_apart_after_ten_own_rounds(rounds, apart):
    b = Side()
    b.divide(D, rounds=rounds)
    assert b.apart == ({D} if apart else set()) and (b.line != NO_LINE) == apart


@pytest.mark.parametrize(("ahead", "apart"), [(LONG - 1, False), (LONG, True)])
def test_member_known_only_as_failed_is_apart_by_how_far_it_has_come(ahead, apart):
    """So a joiner belongs to the side that it joined."""
    b = Side()
    b.progress.merge([Progress(D, 90, 90, 90, 9)])
    b.see(D, State.FAILED)
    b.progress.merge([Progress(D, 90 + ahead, 90 + ahead, 90, 9)])
    b.see(D)
    assert b.apart == ({D} if apart else set())


def test_member_that_counts_on_from_another_s_clock_is_not_apart_for_that():
    b = Side()
    b.progress.merge([Progress(D, 90, 90, 90, 9)])
    b.see(D, State.FAILED)
    b.progress.merge([Progress(D, 9000, 95, 95, 10)])
    b.see(D)
    assert not b.apart


@pytest.mark.parametrize(("rounds", "apart"), [(ROUNDS - 1, False), (ROUNDS, True)])
def test_member_remembered_and_missing_at_a_restart_is_apart(rounds, apart):
    b = Side(side=(), remembered=[record(D)])
    b.train(rounds)
    b.see(D)
    assert b.apart == ({D} if apart else set())


def test_later_life_of_a_lost_member_is_not_apart_by_itself():
    b = Side()
    b.divide(rounds=0)
    b.see(D)
    b.see(D, State.FAILED)
    b.train(ROUNDS)
    b.see(D, incarnation=2)
    assert not b.apart


@pytest.mark.parametrize(("rounds", "members"), [(ROUNDS - 1, 0), (ROUNDS, 4)])
def test_later_life_that_says_it_is_apart_is_believed_by_a_side_that_missed_it_for_as_long(rounds, members):
    """A peer that was stopped hears from all others that it is apart, and its line counts no members."""
    b = Side(side=(A, C, E))
    b.see(D, at=0.0)
    b.see(D, State.FAILED)
    b.train(rounds)
    b.see(D, incarnation=2)
    b.hear(D, Line(1, 1, 300, 30, D), apart=True, incarnation=2)
    assert b.apart == {D} and b.line.members == members
    b.hear(E, Line(1, 1, 300, 30, D), apart=True)
    b.wait(HEARD + PERIOD)
    assert (b.course.resyncing is Reason.APART) is (members == 0)


def test_later_life_that_has_its_model_from_this_side_is_as_any_other():
    b = Side()
    b.see(D, at=0.0)
    b.see(D, State.FAILED)
    b.train(ROUNDS)
    b.see(D, incarnation=2)
    b.hear(D, NO_LINE, apart=False, incarnation=2)
    b.hear(D, GREATER, apart=True, incarnation=2)
    assert b.apart == {D} and b.line.members == 0


def test_later_life_that_comes_while_there_are_two_sides_is_kept_out_until_it_names_its_line():
    b = Side()
    b.divide(D)
    b.see(E, incarnation=2)
    assert b.apart == {D, E}
    b.hear(E, b.line, apart=False, incarnation=2)
    assert b.apart == {D}


def test_member_that_says_it_is_apart_is_held_apart_though_this_peer_noticed_nothing():
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, GREATER, apart=True)
    assert b.apart == {D} and b.line.members == 0


def test_member_that_left_is_apart_no_more():
    b = Side()
    b.divide(D)
    b.see(D, State.LEFT)
    assert not b.apart


# -- the line of this side -------------------------------------------------------------------------------------


def test_line_counts_this_side_as_it_was_before_the_reunion():
    b = Side()
    b.divide(D, E, F)
    assert b.line == Line(1, 3, 150, 30, B)


def test_line_said_within_the_side_is_taken_over_if_it_is_greater():
    b = Side()
    b.divide(D)
    greater, smaller = replace(b.line, members=4, maker=A), replace(b.line, members=2, maker=C)
    b.hear(A, greater, apart=False)
    b.hear(C, smaller, apart=False)
    assert b.line == greater and b.apart == {D}


def test_line_of_a_member_that_has_just_come_is_not_of_this_side():
    b = Side()
    b.divide(D)
    mine = b.line
    b.see(E, State.FAILED)
    b.see(E)
    b.hear(E, replace(GREATER, maker=E), apart=False)
    assert b.line == mine


def test_line_of_a_member_still_held_dead_is_not_of_this_side():
    b = Side(side=(A, C, E))
    b.divide(D)
    mine = b.line
    b.see(E, State.FAILED)
    b.hear(E, replace(GREATER, maker=E), apart=False)
    assert b.line == mine


def test_line_of_this_side_holds_though_its_maker_has_died():
    b = Side(side=(A, C, E))
    b.divide(D)
    b.see(E, State.FAILED)
    greater = replace(b.line, members=5, maker=E)
    b.hear(A, greater, apart=False)
    assert b.line == greater and b.apart == {D}


def test_member_that_tells_a_line_of_the_others_has_gone_over():
    b = Side()
    b.divide(D)
    b.hear(A, replace(GREATER, maker=D), apart=False)
    assert b.apart == {A, D}


def test_generation_that_cannot_be_counted_on_from_does_not_make_this_peer_unreadable():
    b = Side()
    b.divide(D)
    b.hear(A, replace(b.line, members=4, generation=LAST, maker=A), apart=False)
    b.hear(D, b.line, apart=False)
    b.wait(FROZEN + PERIOD)
    b.see(C, State.FAILED)
    b.divide(D)
    assert b.line.generation == LAST and b.line.maker == B
    b.see(A, State.FAILED)
    b.wait(HEARD + PERIOD)
    b.now += 1e6
    b.step()
    assert b.line.members == 1
    b.course._tell(D)
    for envelope in b.outputs.messages:
        wire.decode(envelope.frames)


@pytest.mark.parametrize("wait", [FROZEN + PERIOD])
def test_next_reunion_has_a_line_of_its_own(wait):
    b = Side()
    b.divide(D)
    b.hear(D, b.line, apart=False)
    assert not b.apart
    b.wait(wait)
    b.see(C, State.FAILED)
    b.divide(D)
    assert b.line == Line(2, 2, 200, 40, B)


def test_message_overtaken_by_a_later_one_is_ignored():
    b = Side()
    b.divide(D)
    b.hear(D, b.line, apart=False, number=7)
    b.hear(D, GREATER, apart=True, number=6)
    assert not b.apart


def test_message_of_an_earlier_life_is_ignored():
    b = Side()
    b.see(D, incarnation=3, at=0.0)
    b.hear(D, GREATER, apart=True, incarnation=2)
    assert not b.apart


def test_apart_told_to_an_earlier_life_holds_no_member_apart():
    b = Side(side=(A, C, D))
    b.hear(D, GREATER, life=0)
    assert not b.sides.apart and b.line == NO_LINE
    b.hear(D, GREATER, life=1)
    assert list(b.sides.apart) == [D] and b.line != NO_LINE


def test_tables_are_not_swept_at_each_message_of_a_network_at_the_limit_of_membership():
    """A sweep that forgets no member is due again at once. With ten thousand members every event would pay for one."""
    assert MAX_LIVES >= 2 * MAX_MEMBERS
