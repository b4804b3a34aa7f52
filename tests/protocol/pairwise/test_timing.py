"""Learnt times: how long a chunk usually takes, and how long an answer."""

import math

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import Deadlines, Terms
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.wire.messages import Ask, Data, Ranges


def test_pace_is_unknown_at_first_then_that_of_the_last_exchanges():
    timing = Timing(1.0)
    assert timing.pace == math.inf
    timing.exchanged(10, 5.0)
    assert timing.pace == pytest.approx(0.5)
    timing.exchanged(1, 16.0)
    assert timing.pace == pytest.approx(0.5 * 32**0.2)


def test_exchange_slowed_by_its_rate_does_not_count_once_others_do():
    timing = Timing(1.0)
    timing.exchanged(1, 64.0, owed=63.0)
    assert timing.pace == pytest.approx(64.0), "better than no measure"
    timing.exchanged(1, 2.0)
    known = timing.pace
    timing.exchanged(1, 64.0, owed=63.0)
    assert known < 64.0 and timing.pace == known
    timing.exchanged(1, 200.0, owed=63.0)
    assert timing.pace > known, "far slower than it had to be"


def test_patience_is_twice_the_last_answers_time_within_bounds():
    timing = Timing(1.0)
    learnt = []
    for seconds in (0.2, 1.5, 30.0, 0.1):
        timing.answered(seconds, 0)
        learnt.append(timing.patience)
    assert learnt == [1.0, 3.0, 8.0, 1.0]


def test_answer_to_a_repeated_message_is_not_measured_but_the_needed_patience_is_kept():
    timing = Timing(1.0)
    learnt = []
    for seconds, asked in ((1.7, 1), (0.3, 1), (90.0, 3), (0.3, 0)):
        timing.answered(seconds, asked)
        learnt.append(timing.patience)
    assert learnt == [1.7, 1.7, 8.0, 1.0]


def test_slow_link_causes_one_repeated_question_and_never_more():
    outputs, timing = Outputs(), Timing(1.0)

    def begun(number, now):
        """An exchange of one chunk whose answers take 1.6 s; how often was asked again?"""
        terms = Terms(
            partner=b"p" * 32,
            incarnation=1,
            initiator=b"m" * 32,
            exchange=number,
            chunks=1,
            size=256,
            coding=jobs.Coding(codec="modulo4", lower=True),
            mixing=jobs.Mixing(weight=0.5, pull=0.0),
            window=1,
        )
        side = Initiator(terms, outputs, Deadlines(ask=1.0), now=now, timing=timing)
        answers = iter([Data(number, 0, 1, math.inf), Data(number, 0, 3, math.inf), Data(number, 0, 5, math.inf)])
        for answer in answers:
            side.job_done(outputs.jobs.popleft(), jobs.Turn((b"codes",)), now)
            while (due := side.timer()) is not None and due < now + 1.6:
                side.handle_timer(due)
            now += 1.6
            side.receive(answer, [b"x"], 50, now)
        said = [type(envelope.message) for envelope in outputs.messages]
        outputs.messages.clear()
        outputs.jobs.clear()
        assert said.count(Ranges) == 1 and said.count(Data) == 2, said
        return said.count(Ask)

    assert [begun(n, 100.0 * n) for n in range(3)] == [1, 0, 0]
