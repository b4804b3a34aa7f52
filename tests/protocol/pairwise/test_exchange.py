"""One exchange, turn by turn (algorithms section 3): each message is lost, duplicated or overtaken.

In every case both sides have mixed a chunk once, or neither has.
"""

import numpy as np
import pytest

from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded
from gossipdp.protocol.wire.messages import Ack, Ask, Data, Miss, Offer, Ranges, Void
from tests.protocol.pairwise.exchange_rig import CHUNKS, EXCHANGE, MESSAGES, Pair, transcript


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "modulo4", "modulo8", "modulo16"])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_undisturbed_exchange_averages_every_chunk_once(codec, window):
    said, _ = transcript(codec=codec, window=window)
    assert [message.chunk for message in said if isinstance(message, Ranges)] == [1, 2, 0]
    assert not [message for message in said if isinstance(message, Ask | Miss | Void)]


def test_undisturbed_dialogue_is_ranges_data_data_ack():
    said, count = transcript(window=1)
    assert count == transcript()[1] == MESSAGES
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
