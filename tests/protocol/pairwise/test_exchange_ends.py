"""An exchange ends at each chunk boundary, and either side vanishes at each message (algorithms section 3).

In every case both sides have mixed a chunk once, or neither has.
"""

from itertools import pairwise

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded
from gossipdp.protocol.wire.messages import Ask, Data, End
from tests.protocol.pairwise.exchange_rig import CHUNKS, DEADLINES, MESSAGES, Pair


@pytest.mark.parametrize("crashed", ["initiator", "responder"])
@pytest.mark.parametrize("number", range(MESSAGES))
def test_survivor_keeps_what_it_mixed_and_counts_its_doubts_when_its_partner_crashes(number, crashed):
    pair = Pair()
    lost = getattr(pair, crashed)
    survivor = pair.responder if lost is pair.initiator else pair.initiator

    def mangle(at, item, wire):
        if at == number:
            lost.alive = False
        return [item]

    pair.play(mangle, until=60.0)
    given = set(pair.responder.mixed) - set(pair.initiator.mixed)
    assert survivor.machine.ended
    survivor.machine.give_up(pair.now)
    survivor.work(pair.now)
    counted = sum(event.count for event in survivor.of(ChunksInDoubt))
    assert len(given) <= counted <= 2
    assert survivor.machine.settled and not survivor.algorithm._open


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


@pytest.mark.parametrize("ends", [0.0, 0.05, 0.35, 0.65])
@pytest.mark.parametrize("window", [1, 2])
def test_no_chunk_begins_after_the_end_of_its_round_and_those_that_began_are_mixed(ends, window):
    pair = Pair(window=window, ends=ends)
    opened = {}

    def mangle(at, item, wire):
        pair.now += 0.1
        for chunk in pair.initiator.machine._open:
            opened.setdefault(chunk, pair.now)
        return [item]

    pair.play(mangle)
    assert all(at <= ends + 0.2 for at in opened.values())
    pair.check(set(opened))
    (ended,) = pair.initiator.of(ExchangeEnded)
    assert (ended.result, ended.chunks) == ("done" if len(opened) == CHUNKS else "cut", len(opened))
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
