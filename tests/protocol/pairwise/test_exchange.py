"""One exchange, turn by turn (algorithms section 3).

Each message is lost, duplicated or overtaken, either side vanishes at each message, and the exchange ends at each chunk
boundary. In every case both sides have mixed a chunk once, or neither has.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

import numpy as np
import pytest

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import Deadlines, Terms
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.responder import Responder
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Accept, Ack, Ask, Data, End, Miss, Offer, Ranges, Void

CHUNKS, WIDTH = 3, 256
INITIATOR, RESPONDER = b"i" * 32, b"r" * 32
EXCHANGE = 1 << 32 | 7
DEADLINES = Deadlines(ask=1.0, silence=10.0, doubt=5.0)


def terms(partner, codec, window, rate=float("inf")):
    return Terms(
        partner=partner,
        incarnation=1,
        exchange=EXCHANGE,
        codec=codec,
        weight=0.5,
        pull=0.0,
        window=window,
        lower=partner == RESPONDER,
        rate=rate,
    )


class Side:
    """One machine with its vectors. `work` runs its jobs, `post` takes its messages."""

    def __init__(self, seed, spread):
        self.outputs, self.algorithm, self.machine = Outputs(), Pairwise(), None
        self.algorithm.allocate(CHUNKS * WIDTH, CHUNKS * WIDTH, WIDTH)
        rng = np.random.default_rng(seed)
        self.algorithm.ledger.a[:] = rng.standard_normal(CHUNKS * WIDTH) * spread
        self.algorithm.range[:] = spread
        self.algorithm._step[:] = 10.0 * spread * math.sqrt(WIDTH)  # so that nothing is clipped
        self.start = self.algorithm.ledger.a.copy()
        self.events, self.alive, self.mixed = [], True, []

    @property
    def a(self):
        return self.algorithm.ledger.a

    def work(self, now):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(result, jobs.Turn):
                if result.mixed:
                    self.mixed.append(job.key.chunk)
                self.machine.job_done(job, result, now)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def post(self):
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Pair:
    """Both machines and the wire between them. Every message is decoded from its frames."""

    def __init__(self, codec="modulo8", window=2, spread=0.1, rate=float("inf"), usual=None):
        self.now, self.tempo = 0.0, Timing(DEADLINES.ask)
        if usual is not None:
            self.tempo.exchanged(1, usual)
        self.initiator, self.responder = Side(1, spread), Side(2, spread)
        accept = Accept(EXCHANGE, codec, 0.5, 0.0, window, 1)
        size = {"chunks": CHUNKS, "size": CHUNKS * WIDTH, "now": 0.0}
        self.responder.machine = Responder(
            terms(INITIATOR, codec, window, rate), accept, self.responder.outputs, DEADLINES, **size
        )
        self.accept = self.responder.post()
        self.initiator.machine = Initiator(
            terms(RESPONDER, codec, window, rate),
            INITIATOR,
            self.initiator.outputs,
            DEADLINES,
            first=1,
            timing=self.tempo,
            **size,
        )
        self.wire: deque[tuple[Side, object]] = deque()
        self.said = []

    def sides(self):
        return self.initiator, self.responder

    def gather(self):
        """Run jobs and put the messages on the wire, each with its receiver."""
        for side, other in (self.sides(), self.sides()[::-1]):
            if side.alive:
                side.work(self.now)
                for envelope in side.post():
                    self.said.append(envelope.message)
                    self.wire.append((other, envelope))

    def deliver(self, side, envelope):
        if side.alive and side.machine is not None:
            message, buffers = wire.decode(envelope.frames)
            side.machine.receive(message, list(buffers), 100, self.now)

    def unknown(self):
        """The responder remembers nothing: what averaging would answer."""
        self.initiator.machine.receive(End(EXCHANGE, False, "unknown"), [], 10, self.now)

    def play(self, mangle=lambda number, item, wire: [item], until=200.0):
        """To rest. `mangle` says what becomes of message `number`: a list of (hearer, envelope)."""
        number = 0
        while True:
            self.gather()
            if self.wire:
                item = self.wire.popleft()
                for hearer, envelope in mangle(number, item, self.wire):
                    self.deliver(hearer, envelope)
                    self.gather()
                number += 1
                continue
            timers = [side.machine.timer() for side in self.sides() if side.alive]
            due = min((time for time in timers if time is not None), default=None)
            if due is None or due > until:
                return number
            self.now = due
            for side in self.sides():
                if side.alive:
                    side.machine.handle_timer(self.now)

    def check(self, chunks=range(CHUNKS)):
        """The sum has not moved; `chunks` are averaged, the others as they were; nothing is left open."""
        i, r = self.sides()
        np.testing.assert_allclose(i.a.astype(np.float64) + r.a, i.start.astype(np.float64) + r.start, atol=1e-6)
        for chunk in range(CHUNKS):
            span = slice(chunk * WIDTH, (chunk + 1) * WIDTH)
            if chunk in chunks:
                np.testing.assert_allclose(i.a[span], r.a[span], atol=0.03)
            else:
                assert (i.a[span] == i.start[span]).all() and (r.a[span] == r.start[span]).all()
        for side in self.sides():
            assert sorted(side.mixed) == sorted(chunks)
            assert not side.algorithm._open
        assert i.machine.settled and r.machine.ended


def transcript(**options):
    pair = Pair(**options)
    count = pair.play()
    pair.check()
    return pair.said, count


MESSAGES = transcript()[1]


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "modulo4", "modulo8", "modulo16"])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_undisturbed_exchange_averages_every_chunk_once(codec, window):
    said, _ = transcript(codec=codec, window=window)
    assert [message.chunk for message in said if isinstance(message, Ranges)] == [1, 2, 0]
    assert not [message for message in said if isinstance(message, Ask | Miss | Void)]


def test_undisturbed_dialogue_is_ranges_data_data_ack():
    said, _ = transcript(window=1)
    kinds = [(type(message).__name__, getattr(message, "turn", 0)) for message in said]
    assert kinds == [("Ranges", 0), ("Data", 1), ("Data", 2), ("Ack", 3)] * CHUNKS + [("End", 0)]


def test_escalation_takes_more_turns_and_ends_exact():
    pair = Pair(codec="modulo4")
    for side in pair.sides():
        side.algorithm.range[:] = 1e-4
    pair.play()
    i, r = pair.sides()
    assert i.of(ExchangeEnded)[0].escalated == i.of(ExchangeEnded)[0].blocks > 0
    np.testing.assert_allclose(i.a, r.a, atol=1e-3)
    assert max(message.turn for message in pair.said if isinstance(message, Data | Ack)) > 3
    assert sorted(i.mixed) == sorted(r.mixed) == [0, 1, 2]


@pytest.mark.parametrize("number", range(MESSAGES))
def test_each_message_lost_once_is_asked_for_again(number):
    pair = Pair()
    pair.play(lambda at, item, wire: [] if at == number else [item])
    pair.check()
    assert pair.initiator.of(ExchangeEnded)[0].result == "done"


@pytest.mark.parametrize("number", range(MESSAGES))
def test_duplicate_of_each_message_changes_nothing(number):
    pair = Pair()
    pair.play(lambda at, item, wire: [item, item] if at == number else [item])
    pair.check()


@pytest.mark.parametrize("delay", [1, 3, 6])
@pytest.mark.parametrize("number", range(MESSAGES))
def test_each_message_that_others_overtake_changes_nothing(number, delay):
    pair, held = Pair(), []

    def mangle(at, item, wire):
        if at == number:
            held.append(item)
            return []
        return [item, held.pop()] if held and at >= number + delay else [item]

    pair.play(mangle)
    pair.check()


@pytest.mark.parametrize("number", range(MESSAGES))
def test_copies_of_all_messages_at_the_end_change_nothing(number):
    """Every message is duplicated. The copies arrive much later, beginning with `number`."""
    pair, copies = Pair(), []

    def mangle(at, item, wire):
        copies.append(item)
        return [item]

    pair.play(mangle)
    for hearer, envelope in copies[number:] + copies[:number]:
        pair.deliver(hearer, envelope)
        pair.gather()
    pair.check()


@pytest.mark.parametrize("seed", range(40))
def test_exchange_settles_exactly_despite_heavy_loss_duplicates_and_reordering(seed):
    rng, pair = np.random.default_rng(seed), Pair(codec="modulo4", window=3)

    def mangle(at, item, wire):
        chance = rng.random()
        if chance < 0.3:
            return []
        if chance < 0.5:
            wire.append(item)
            return [item]
        if chance < 0.7 and wire:
            wire.rotate(-1)
            wire.append(item)
            return []
        return [item]

    pair.play(mangle, until=400.0)
    mixed = set(pair.responder.mixed)
    assert sorted(pair.responder.mixed) == sorted(mixed) and sorted(pair.initiator.mixed) == sorted(mixed)
    pair.check(mixed)


@pytest.mark.parametrize("number", range(MESSAGES))
def test_exchange_settles_after_a_cut_longer_than_silence(number):
    pair = Pair()
    pair.play(lambda at, item, wire: [item] if at < number or pair.now > 30.0 else [])
    mixed = set(pair.responder.mixed)
    pair.check(mixed)
    assert pair.initiator.of(ExchangeEnded)[0].result == ("done" if len(mixed) == CHUNKS else "lost") or mixed
    assert not pair.initiator.of(ChunksInDoubt) and not pair.responder.of(ChunksInDoubt)


@pytest.mark.parametrize("number", range(MESSAGES))
def test_initiator_counts_its_doubts_when_the_responder_crashes(number):
    pair = Pair()

    def mangle(at, item, wire):
        if at == number:
            pair.responder.alive = False
        return [item]

    pair.play(mangle, until=60.0)
    given = set(pair.responder.mixed) - set(pair.initiator.mixed)
    assert pair.initiator.machine.ended
    pair.initiator.machine.give_up(pair.now)
    pair.initiator.work(pair.now)
    counted = sum(event.count for event in pair.initiator.of(ChunksInDoubt))
    assert len(given) <= counted <= 2
    assert pair.initiator.machine.settled and not pair.initiator.algorithm._open


@pytest.mark.parametrize("number", range(MESSAGES))
def test_responder_keeps_what_it_mixed_and_counts_when_the_initiator_crashes(number):
    pair = Pair()

    def mangle(at, item, wire):
        if at == number:
            pair.initiator.alive = False
        return [item]

    pair.play(mangle, until=60.0)
    given = set(pair.responder.mixed) - set(pair.initiator.mixed)
    assert pair.responder.machine.ended
    pair.responder.machine.give_up(pair.now)
    pair.responder.work(pair.now)
    counted = sum(event.count for event in pair.responder.of(ChunksInDoubt))
    assert len(given) <= counted <= 2
    assert pair.responder.machine.settled and not pair.responder.algorithm._open


@pytest.mark.parametrize("after", range(CHUNKS + 1))
@pytest.mark.parametrize("window", [1, 2])
def test_initiator_ends_at_a_chunk_boundary_and_mixed_chunks_stay_mixed(after, window):
    pair = Pair(window=window)

    def mangle(at, item, wire):
        if len(pair.initiator.mixed) >= after:
            pair.initiator.machine.finish_early(pair.now)
        return [item]

    pair.play(mangle)
    pair.check(set(pair.initiator.mixed))
    assert after <= len(pair.initiator.mixed) <= min(CHUNKS, after + window)
    ended = pair.initiator.of(ExchangeEnded)[0]
    assert ended.result == ("done" if ended.chunks == CHUNKS and after >= CHUNKS else ended.result)
    assert pair.responder.machine.settled


@pytest.mark.parametrize("number", range(MESSAGES))
def test_open_chunks_are_void_and_nothing_is_lost_when_the_responder_leaves(number):
    pair = Pair()

    def mangle(at, item, wire):
        if at == number:
            pair.responder.machine.close("cut", pair.now, "leaving")
            pair.gather()
        return [item]

    pair.play(mangle)
    pair.check(set(pair.responder.mixed))
    # The responder told it, so it did not have to ask.
    assert pair.now < DEADLINES.silence


@pytest.mark.parametrize("times", [1, 2, 3])
def test_lost_ack_is_asked_for_and_repeated_byte_for_byte(times):
    pair, lost = Pair(window=1), []

    def mangle(at, item, wire):
        if isinstance(item[1].message, Ack) and len(lost) < times:
            lost.append(item[1])
            return []
        return [item]

    pair.play(mangle)
    pair.check()
    acks = [message for message in pair.said if isinstance(message, Ack) and message.chunk == lost[0].message.chunk]
    assert len(acks) == times + 1 and len(set(acks)) == 1
    assert sum(isinstance(message, Ask) for message in pair.said) == times


def test_ask_for_a_turn_that_never_arrived_gets_a_miss_and_the_turn_is_sent_again():
    pair, lost = Pair(window=1), []

    def mangle(at, item, wire):
        if isinstance(item[1].message, Data) and item[1].message.turn == 2 and not lost:
            lost.append(item)
            return []
        return [item]

    pair.play(mangle)
    pair.check()
    kinds = [type(message) for message in pair.said]
    assert kinds.count(Ask) == 1 and kinds.count(Miss) == 1 and kinds.count(Data) == 2 * CHUNKS + 1


def test_asking_backs_off_and_silence_ends_the_exchange():
    pair = Pair(window=1)
    asked = []

    def mangle(at, item, wire):
        if isinstance(item[1].message, Ask):
            asked.append(pair.now)
        return []

    pair.play(mangle, until=12.0)
    # Turn 0 leaves no doubt, so no chunk is kept. The pauses double.
    assert asked == [1.0, 3.0, 7.0]
    assert pair.initiator.of(ExchangeEnded)[0].result == "lost" and pair.initiator.machine.settled
    assert pair.responder.of(ExchangeEnded)[0].result == "lost"


def test_chunk_in_doubt_of_a_lost_exchange_is_asked_about_soon_despite_earlier_questions():
    pair, asked = Pair(window=1), []

    def mangle(at, item, wire):
        if isinstance(item[1].message, Ask):
            asked.append(pair.now)
        return [] if item[0] is pair.initiator and pair.responder.mixed else [item]

    pair.play(mangle, until=100.0)
    ended = next(at for at in asked if at > DEADLINES.silence) - DEADLINES.doubt
    assert pair.initiator.of(ExchangeEnded)[0].result == "lost" and ended == DEADLINES.silence
    pauses = [after - before for before, after in pairwise([ended, *(at for at in asked if at > ended)])]
    assert pauses[:4] == [DEADLINES.doubt * factor for factor in (1, 2, 4, 8)]


def test_unknown_exchange_is_given_up_and_its_chunks_in_doubt_are_counted():
    pair = Pair(window=2)

    def mangle(at, item, wire):
        if isinstance(item[1].message, Data) and item[1].message.turn == 2:
            pair.responder.alive = False
        return [item]

    pair.play(mangle, until=5.0)
    pair.unknown()
    pair.initiator.work(pair.now)
    assert pair.initiator.machine.settled
    assert sum(event.count for event in pair.initiator.of(ChunksInDoubt)) >= 1


def test_lost_exchange_waits_for_its_mixing_job():
    """A job cannot be cancelled. The chunk is neither dropped nor in doubt, and counts as mixed."""
    pair = Pair(window=1)
    pair.gather()
    while not any(isinstance(job, jobs.Mix) for job in pair.initiator.outputs.jobs):
        hearer, envelope = pair.wire.popleft()
        pair.deliver(hearer, envelope)
        if not any(isinstance(job, jobs.Mix) for job in pair.initiator.outputs.jobs):
            pair.gather()
    pair.initiator.machine.lose(pair.now)
    assert pair.initiator.machine.ended and not pair.initiator.machine.settled
    pair.initiator.machine.give_up(pair.now)
    pair.initiator.work(pair.now)
    assert pair.initiator.machine.settled and not pair.initiator.of(ChunksInDoubt)
    assert pair.initiator.mixed == pair.responder.mixed == [1]


def test_chunk_of_a_closed_exchange_whose_job_runs_still_counts_and_is_acknowledged():
    pair = Pair(window=1)
    pair.gather()
    while not any(isinstance(job, jobs.DecodeAndMix) for job in pair.responder.outputs.jobs):
        hearer, envelope = pair.wire.popleft()
        pair.deliver(hearer, envelope)
        if not any(isinstance(job, jobs.DecodeAndMix) for job in pair.responder.outputs.jobs):
            pair.gather()
    pair.responder.machine.close("cut", pair.now, "leaving")
    assert pair.responder.machine.working and not pair.responder.machine.settled
    pair.play()
    pair.check({1})


def test_responder_is_free_once_all_chunks_are_mixed_even_if_the_end_is_lost():
    pair = Pair()
    pair.play(lambda at, item, wire: [] if isinstance(item[1].message, End) else [item])
    assert pair.responder.of(ExchangeEnded)[0].result == "done" and pair.now == 0.0
    assert not pair.responder.machine.settled


def test_length_of_an_exchange_of_which_a_part_was_mixed_is_that_of_all_its_chunks():
    side = Pair(window=1).initiator.machine
    assert side.length() == 0.0
    side.tally.mixed(jobs.Turn((), True, True, 1.0), 2.0)
    assert side.length() == 0.0, "the first window tells nothing: it is what it takes to begin"
    side.tally.mixed(jobs.Turn((), True, True, 1.0), 3.0)
    assert side.length() == 3.0 * CHUNKS / 2


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


def test_offer_repeated_before_the_first_chunk_is_accepted_again():
    pair = Pair()
    offer = Offer(EXCHANGE, b"s" * 16, b"t" * 16, "modulo8", 0.5, 0.0, 0, 2)
    pair.responder.machine.offered_again(offer)
    assert [envelope.message for envelope in pair.responder.post()] == [pair.accept[0].message]
    pair.play()
    pair.responder.machine.offered_again(offer)
    assert not pair.responder.post()


def test_void_chunk_is_never_opened_or_mixed_again():
    """Copies of its Ranges and Data may still be under way after the initiator has dropped it."""
    pair = Pair(window=1)
    heard = []

    def mangle(at, item, wire):
        hearer, envelope = item
        if hearer is pair.responder:
            heard.append(item)
        damaged = isinstance(envelope.message, Data) and (envelope.message.chunk, envelope.message.turn) == (1, 2)
        frames = [envelope.frames[0], *[b"x"] * (len(envelope.frames) - 1)] if damaged else envelope.frames
        return [(hearer, envelope._replace(frames=frames))] if at < 4 else []

    pair.play(mangle, until=0.5)
    assert Void(EXCHANGE, 1) in pair.said and not pair.responder.machine.ended
    for hearer, envelope in [item for item in heard if getattr(item[1].message, "chunk", -1) == 1]:
        pair.deliver(hearer, envelope)
        pair.responder.work(pair.now)
    assert not pair.responder.mixed and {envelope.message for envelope in pair.responder.post()} == {Void(EXCHANGE, 1)}


def test_both_chunks_being_mixed_are_counted_when_the_initiators_life_ends():
    pair, out = Pair(window=2), []
    pair.gather()
    while len(out) < 2:
        hearer, envelope = pair.wire.popleft()
        pair.deliver(hearer, envelope)
        queue = pair.responder.outputs.jobs
        out += [job for job in queue if isinstance(job, jobs.DecodeAndMix)]
        for job in out:
            if job in queue:
                queue.remove(job)
        pair.gather()
    pair.responder.machine.give_up(pair.now)
    pair.responder.outputs.jobs.extend(out)
    pair.responder.work(pair.now)
    assert sum(event.count for event in pair.responder.of(ChunksInDoubt)) == len(pair.responder.mixed) == 2
    assert pair.responder.machine.settled and not pair.responder.algorithm._open


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
