"""Patience as a table: what an answer teaches, and what silence adds."""

import pytest

from gossipdp.protocol.patience import Patience, backed_off


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ([], 1.0),
        ([0.2], 1.0),
        ([1.5], 3.0),
        ([30.0], 8.0),
        ([30.0, 0.1], 1.0),
    ],
)
def test_patience_is_twice_the_last_answers_time_within_bounds(answers, seconds):
    patience = Patience(1.0, 8.0)
    for answer in answers:
        patience.answered(answer)
    assert patience.seconds == seconds


def test_answer_to_a_repeated_request_keeps_the_patience_that_was_needed():
    patience, learnt = Patience(1.0, 8.0), []
    for seconds in (1.7, 0.3, 90.0):
        patience.needed(seconds)
        learnt.append(patience.seconds)
    patience.answered(0.3)
    assert [*learnt, patience.seconds] == [1.7, 1.7, 8.0, 1.0]


def test_each_silence_doubles_up_to_sixteen_times():
    assert [backed_off(0.5, silences) for silences in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
