"""Whose layout a joiner believes."""

import pytest

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.layouts import MOST_PATIENCE, Layouts, Opinion, opinion

A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")
X, Y, Z = b"x", b"y", b"z"


@pytest.mark.parametrize(
    ("shown", "more", "said"),
    [
        pytest.param({A: X}, False, Opinion.COUNTS, id="one member alone"),
        pytest.param({A: X}, True, Opinion.OPEN, id="another one may show its layout"),
        pytest.param({A: X, B: X}, True, Opinion.COUNTS, id="two members show it"),
        pytest.param({A: X, B: Y}, True, Opinion.OPEN, id="two that differ, and a third"),
        pytest.param({A: X, B: Y}, False, Opinion.COUNTS, id="two that differ, and no third"),
        pytest.param({A: X, B: Y, C: Y}, False, Opinion.DENIED, id="two others agree"),
        pytest.param({A: X, B: Y, C: X}, False, Opinion.COUNTS, id="the third one agrees with the source"),
        pytest.param({A: X, B: Y, C: Z}, False, Opinion.COUNTS, id="all differ"),
        pytest.param({A: X, B: X, C: Y, D: Y}, False, Opinion.COUNTS, id="two and two"),
    ],
)
def test_opinion_of_the_layout_x(shown, more, said):
    assert opinion(X, shown, more=more) is said


def test_two_members_differ_and_a_third_refuses__it_is_asked_again_for_a_while():
    layouts = Layouts(Outputs(), 1, repeat=2.0, patience=10.0)
    layouts.shows(A, X)
    layouts.shows(B, Y)
    asked, now = [], 0.0
    layouts.ask(X, [B, C], now)
    while layouts.opinion(X) is Opinion.OPEN:
        if layouts.second is not None:
            asked.append(now)
            layouts.excused(C)
        else:
            now = layouts.timer()
            layouts.handle_timer(now)
        layouts.ask(X, [B, C], now)
    assert asked[:3] == [0.0, 2.0, 4.0] and now == MOST_PATIENCE * 10.0


@pytest.mark.parametrize(("frozen", "left"), [((), 10.0), ((1, 2), 18.0), (range(1, 999), MOST_PATIENCE * 10.0)])
def test_member_that_goes_on_freezing_is_waited_for(frozen, left):
    layouts, now, chunks = Layouts(Outputs(), 1, repeat=4.0, patience=10.0), 0.0, iter(frozen)
    layouts.shows(A, X)
    layouts.ask(X, [B], now)
    while layouts.second is not None:
        now = layouts.timer()
        layouts.handle_timer(now)
        if layouts.second is not None and (said := next(chunks, None)) is not None:
            layouts.waits(said, now)
    assert now == left and layouts.opinion(X) is Opinion.COUNTS
