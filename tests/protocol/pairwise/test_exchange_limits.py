"""What one exchange refuses or bounds: open chunks, payloads, shares, questions, and a rate far below the usual."""

import numpy as np
import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ExchangeEnded, UpdateRefused
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Ack, Ask, Data, Miss, Ranges, Void
from tests.protocol.pairwise.exchange_rig import CHUNKS, DEADLINES, EXCHANGE, Pair


def test_more_chunks_than_the_credit_are_not_opened_while_jobs_are_out():
    pair = Pair(window=1)
    for chunk in range(CHUNKS):
        pair.responder.machine.receive(Ranges(EXCHANGE, chunk, 1), [b"\0"], 10, 0.0)
    answers = [job for job in pair.responder.outputs.jobs if isinstance(job, jobs.Answer)]
    assert [job.key.chunk for job in answers] == [0, 1]
    pair.responder.machine.receive(Ranges(EXCHANGE, CHUNKS, 1), [b"\0"], 10, 0.0)
    assert len(pair.responder.outputs.jobs) == 2


def test_more_chunks_than_the_credit_void_the_oldest_that_waits():
    pair = Pair(window=1)
    for chunk in range(CHUNKS):
        pair.responder.machine.receive(Ranges(EXCHANGE, chunk, 1), [b"\0"], 10, 0.0)
        pair.responder.work(0.0)
    assert len(pair.responder.algorithm._open) == 2
    pair.responder.machine.receive(Ask(EXCHANGE, 0, 0), [], 10, 0.0)
    assert pair.responder.post()[-1].message == Void(EXCHANGE, 0)


def test_partner_that_never_sends_the_awaited_answer_is_lost():
    pair = Pair(window=1)

    def mangle(at, item, wire):
        if isinstance(item[1].message, Ask):
            pair.initiator.machine.receive(Miss(EXCHANGE, 1, 99), [], 10, pair.now)
        return []

    pair.play(mangle, until=300.0)
    assert [event.result for event in pair.initiator.of(ExchangeEnded)] == ["lost"]
    assert pair.initiator.machine.settled and pair.now < 60.0


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_damaged_payload_is_refused_and_nothing_moves(turn):
    pair = Pair(window=1)

    def mangle(at, item, wire):
        hearer, envelope = item
        if isinstance(envelope.message, Data) and envelope.message.turn == turn:
            return [(hearer, envelope._replace(frames=[envelope.frames[0], *[b"x"] * (len(envelope.frames) - 1)]))]
        return [item]

    pair.play(mangle, until=60.0)
    mixed = set(pair.responder.mixed)
    pair.check(mixed)
    assert bool(mixed) == (turn == 3)
    refusals = pair.initiator.of(UpdateRefused) + pair.responder.of(UpdateRefused)
    assert {event.reason for event in refusals} == (set() if turn == 3 else {"payload"})


def test_share_above_the_bound_is_refused_by_the_initiator():
    pair = Pair(window=1)
    pair.initiator.algorithm._step[:] = 1e-3
    pair.responder.algorithm.clip = np.inf

    def mangle(at, item, wire):
        hearer, envelope = item
        if isinstance(envelope.message, Ack):
            frames = encode(Ack(EXCHANGE, envelope.message.chunk, envelope.message.turn, 1.0), envelope.frames[1:])
            return [(hearer, envelope._replace(frames=frames))]
        return [item]

    pair.play(mangle, until=60.0)
    assert {event.reason for event in pair.initiator.of(UpdateRefused)} == {"share"}
    assert (pair.initiator.a == pair.initiator.start).all()


def test_bound_sent_with_the_data_holds_even_if_a_step_has_lowered_it_since():
    """An outer step of the initiator between its last turn and the Ack must not make it refuse an honest share."""
    pair = Pair(window=1)
    pair.initiator.algorithm._step[:] = 10.0

    def mangle(at, item, wire):
        if isinstance(item[1].message, Ack):
            pair.initiator.algorithm._step[:] = 1e-3
            pair.initiator.algorithm._distance[:] = np.nan
        elif isinstance(item[1].message, Ranges):
            pair.initiator.algorithm._step[:] = 10.0
            pair.initiator.algorithm._distance[:] = np.nan
        return [item]

    pair.play(mangle)
    pair.check()


def test_agreed_rate_is_kept_and_every_chunk_is_averaged():
    unhurried = Pair(window=1)
    unhurried.play()
    sent = unhurried.initiator.machine.tally.sent
    pair = Pair(window=1, rate=sent / 6.0)
    pair.play()
    pair.check()
    # The rate allows the last chunk once it has allowed the first two: after two thirds of six seconds.
    assert 3.5 <= pair.now <= 6.0 < DEADLINES.silence


@pytest.mark.parametrize(("usual", "result", "mixed"), [(0.01, "slow", [1]), (1.0, "done", [1, 2, 0])])
def test_much_slower_partner_ends_the_exchange_at_a_chunk_boundary(usual, result, mixed):
    pair = Pair(window=1, usual=usual)

    def half_a_second(number, item, wire):
        pair.now += 0.5
        pair.initiator.machine.handle_timer(pair.now)
        return [item]

    pair.play(half_a_second)
    pair.check(mixed)
    assert [event.result for event in pair.initiator.of(ExchangeEnded)] == [result]


@pytest.mark.parametrize(("window", "result"), [(1, "slow"), (CHUNKS, "done")])
def test_first_of_many_open_chunks_may_take_as_long_as_all_of_them(window, result):
    """124 M parameters at 100 Mbit/s and 16 bits: 32 chunks were open, and no closing exchange came to its end."""
    pair = Pair(window=window, usual=1.0)

    def waits(number, item, wire):
        if number == 0:
            pair.now += 6.0
            pair.initiator.machine.handle_timer(pair.now)
        return [item]

    pair.play(waits)
    assert [event.result for event in pair.initiator.of(ExchangeEnded)] == [result]


def test_agreed_rate_does_not_count_as_slowness():
    unhurried = Pair(window=1)
    unhurried.play()
    pair = Pair(window=1, rate=unhurried.initiator.machine.tally.sent / 6.0, usual=0.01)
    pair.play()
    pair.check()


@pytest.mark.parametrize("codec", ["fp32", "int8", "modulo4"])
def test_acknowledgement_before_any_codes_is_ignored(codec):
    pair = Pair(codec=codec)
    pair.gather()
    hostile = Ack(EXCHANGE, 1, 1, 1.0)
    pair.initiator.machine.receive(hostile, [b"xx"], 10, 0.0)
    pair.gather()
    pair.play()
    pair.check()


def test_questions_about_chunks_that_do_not_exist_leave_nothing_behind():
    pair = Pair()
    pair.gather()
    for number in range(CHUNKS, CHUNKS + 1000):
        pair.responder.machine.receive(Ask(EXCHANGE, number, 2), [], 10, 0.0)
    assert not pair.responder.machine._void
    pair.play()
    pair.check()
