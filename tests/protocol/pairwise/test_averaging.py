"""Exchanges between peers from the offer to the end (algorithms section 7): their rate, length, stop and events."""

import numpy as np
import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, ExchangeStarted, Notice, OfferRefused, UpdateRefused
from gossipdp.protocol.pairwise import partner_history
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Accept, Ack, Ask, Data, End, Offer, Ranges, Refuse, State
from tests.protocol.pairwise.averaging_rig import (
    A,
    B,
    C,
    Node,
    an_offer,
    begin,
    configured,
    half_applied,
    network,
    pump,
)
from tests.protocol.pairwise.exchange_rig import CHUNKS, INITIATOR, RESPONDER, Pair


def test_wanted_exchange_is_offered_accepted_and_done():
    nodes = network(A, B)
    apart = nodes[A.id].algorithm.ledger.a - nodes[B.id].algorithm.ledger.a
    nodes[A.id].averaging.want(1, 0.0)
    said = pump(nodes)
    assert [type(message) for message in said[:3]] == [Offer, Accept, Ranges]
    for node in nodes.values():
        assert [event.result for event in node.of(ExchangeEnded)] == ["done"]
        assert node.ended == [3] and node.averaging.at_rest and node.averaging.partner is None
        assert node.distance == pytest.approx(np.sqrt(np.mean(apart**2)), rel=0.01), "per parameter, not per place"
        assert [event.distance for event in node.of(ExchangeEnded)] == [node.distance], "the last chunk is short"
    assert [event.initiator for event in nodes[A.id].of(ExchangeStarted)] == [True]
    np.testing.assert_allclose(nodes[A.id].algorithm.ledger.a, nodes[B.id].algorithm.ledger.a, atol=0.2)


def slow_exchange(nodes):
    """A and B exchange, far slower than usual, while C hears nothing. Returns the time at the end."""
    a, b, now = nodes[A.id].averaging, nodes[B.id].averaging, 0.0
    a.want(1, now)
    while not (a.satisfied and b.at_rest):
        pump({A.id: nodes[A.id], B.id: nodes[B.id]}, now, drop=lambda envelope: envelope.to == C.id)
        if not a.satisfied:
            now = a.timer()
            a.handle_timer(now)
    assert now > 4 * partner_history.SLOW * 3 * 1e-4
    return now


def test_exchange_at_the_agreed_rate_is_no_waste_and_does_not_change_the_learnt_pace():
    nodes = network(A, B, C, config=configured(rate=125e3))
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    for one in (a, b):
        one._timing.exchanged(1, 1e-4)
    now = slow_exchange(nodes)
    for one, other in ((a, B), (b, A)):
        assert not one._offers._known.left_alone(
            [other.id, C.id], now, asks=False
        ) and one._timing.pace == pytest.approx(1e-4)


def test_partner_that_asks_for_a_much_lower_rate_is_left_alone_for_a_while():
    nodes = network(A, B, C)
    nodes[B.id] = Node(B, (A, C), config=configured(rate=125e3))
    a = nodes[A.id].averaging
    a._timing.exchanged(1, 1e-4)
    now = slow_exchange(nodes)
    assert a._offers._known.left_alone([B.id, C.id], now, asks=False)


def test_first_chunk_rotates_from_exchange_to_exchange():
    nodes = network(A, B)
    firsts = []
    for number in range(3):
        nodes[A.id].averaging.want(1, float(number))
        said = pump(nodes, float(number))
        firsts.append(next(message.chunk for message in said if isinstance(message, Ranges)))
    # All chunks were opened, so the next exchange begins with the same first chunk.
    assert firsts == [0, 0, 0]
    begin(nodes, 5.0)
    nodes[A.id].averaging._active.finish_early(5.0)
    pump(nodes, 5.0)
    nodes[A.id].averaging.want(1, 6.0)
    said = pump(nodes, 6.0)
    assert next(message.chunk for message in said if isinstance(message, Ranges)) == 2


def test_new_offer_after_a_lost_end_supersedes_the_old_exchange():
    nodes = network(A, B)
    begin(nodes)
    nodes[A.id].averaging._active.finish_early(0.0)
    pump(nodes, drop=lambda envelope: isinstance(envelope.message, End))
    assert nodes[A.id].averaging.partner is None and nodes[B.id].averaging.partner == A.id
    nodes[A.id].averaging.want(1, 1.0)
    pump(nodes, 1.0)
    assert [event.result for event in nodes[B.id].of(ExchangeEnded)] == ["cut", "done"]


def test_message_of_an_unknown_exchange_is_answered_with_unknown():
    node = Node(A, [B])
    node.hear(B.id, Ask(1 << 32 | 5, 0, 2))
    assert [envelope.message for envelope in node.post()] == [End(1 << 32 | 5, False, "unknown")]
    node.hear(B.id, End(1 << 32 | 5, True, "settled"))
    node.hear(B.id, Ack(1 << 32 | 5, 0, 3, 1.0))
    assert not node.post()


def test_messages_of_an_exchange_from_a_third_peer_change_nothing():
    nodes = network(A, B)
    exchange = begin(nodes)
    before = nodes[A.id].algorithm.ledger.a.copy()
    nodes[A.id].hear(C.id, Data(exchange, 0, 1, 1.0), [b"x", b"y"])
    nodes[A.id].hear(C.id, End(exchange, False, "unknown"))
    assert nodes[A.id].averaging.partner == B.id and (nodes[A.id].algorithm.ledger.a == before).all()


def test_stop_ends_at_the_next_chunk_boundary_and_is_then_at_rest():
    nodes = half_applied()
    nodes[A.id].averaging.stop(0.5)
    assert not nodes[A.id].averaging.at_rest
    for node in nodes.values():
        node.averaging.handle_timer(1.5)
    pump(nodes, 1.5)
    assert nodes[A.id].averaging.at_rest and nodes[B.id].averaging.at_rest
    assert nodes[A.id].of(ExchangeEnded)[0].chunks == 2


def test_responder_that_stops__is_at_rest_once_the_initiator_has_its_acknowledgements():
    nodes = half_applied()
    nodes[B.id].averaging.stop(0.5)
    pump(nodes, 0.5, drop=lambda envelope: isinstance(envelope.message, End))
    assert not nodes[B.id].averaging.at_rest, "its acknowledgements may be on the way, or lost"
    for node in nodes.values():
        node.averaging.handle_timer(1.5)
    pump(nodes, 1.5)
    assert nodes[B.id].averaging.at_rest and nodes[A.id].averaging.at_rest
    nodes[A.id].news(replace(B, state=State.LEFT), 2.0)
    assert not nodes[A.id].of(ChunksInDoubt)
    assert nodes[A.id].of(ExchangeEnded)[0].chunks == 2


def test_responder_that_stops__does_not_wait_for_an_initiator_that_has_failed():
    nodes = half_applied()
    nodes[B.id].news(replace(A, state=State.FAILED), 1.0)
    nodes[B.id].averaging.stop(1.0)
    assert nodes[B.id].averaging.at_rest


def test_exchange_longer_than_a_round_is_cut():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.hear(B.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2))
    node.averaging.want(1, 10.0)
    assert not node.averaging._active._exhausted
    node.averaging.want(1, 20.0)
    assert node.averaging._active._exhausted


def test_lonely_peer_reports_the_reason_once_in_a_while():
    node = Node(A, [B], config=configured(matching=MatchingConfig(lonely=5.0)))
    node.averaging.want(1, 0.0)
    now = 0.0
    while now < 18.0:
        for envelope in node.post(now):
            if isinstance(envelope.message, Offer):
                node.hear(B.id, Refuse(envelope.message.exchange, "schema"), now=now)
        now = node.averaging.timer()
        node.averaging.handle_timer(now)
    node.work(now)
    notices = node.of(Notice)
    assert [notice.code for notice in notices] == ["GD-401", "GD-401"] and "schema" in notices[0].text


def test_stop_withdraws_the_offer_that_is_out_and_a_late_accept_begins_nothing():
    a, b = network(A, B).values()
    a.averaging.want(1, 0.0)
    (envelope,) = a.post()
    a.averaging.stop(0.0)
    assert [type(sent.message) for sent in a.post()] == [End]
    a.hear(b.id, Accept(envelope.message.exchange, envelope.message.codec, 0.5, 0.0, 2, 1))
    assert a.averaging.partner is None
    assert [sent.message.reason for sent in a.post()] == ["unwanted"]


def test_responder_is_free_after_a_round_even_if_the_initiator_keeps_asking():
    a, b = network(A, B).values()
    b.hear(a.id, an_offer(1 << 32 | 1))
    assert b.averaging.partner == a.id
    for step in range(1, 4):
        b.hear(a.id, Ask(1 << 32 | 1, 0, 0), now=float(step))
        b.averaging.want(1, float(step))
    assert [event.result for event in b.of(ExchangeEnded)] == ["cut"]
    assert "round" in [m.message.reason for m in b.post(4.0) if isinstance(m.message, End)]


def test_second_exchange_of_a_round_goes_to_another_member():
    for seed in range(8):
        nodes = network(A, B, C, config=configured(matching=MatchingConfig(biased=0.0)))
        averaging = nodes[A.id].averaging
        averaging._offers._matching._random.seed(seed)
        averaging.want(2, 0.0)
        pump(nodes)
        assert sorted(event.partner for event in nodes[A.id].of(ExchangeStarted)) == [B.id, C.id]


def results(side):
    return [(event.partner, event.initiator, event.result) for event in side.of(ExchangeEnded)]


def test_refused_offer_names_the_member_that_refused() -> None:
    node = network(A, B)[A.id]
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.hear(B.id, Refuse(offer.message.exchange, "busy"))
    assert node.of(OfferRefused) == [OfferRefused(B.id, "busy")]


def test_exchange_that_ends_early_was_cut() -> None:
    pair = Pair(window=1)

    def mangle(at, item, wire):
        if len(pair.initiator.mixed) == 1:
            pair.initiator.machine.finish_early(pair.now)
        return [item]

    pair.play(mangle)
    assert len(pair.initiator.mixed) < CHUNKS
    assert results(pair.initiator) == [(RESPONDER, True, "cut")]


def test_exchange_of_an_earlier_incarnation_is_disowned_and_lost() -> None:
    """This incarnation cannot know what the earlier one mixed."""
    pair, answers = Pair(window=1), []

    def mangle(at, item, post):
        hearer, envelope = item
        message, buffers = wire.decode(envelope.frames)
        if isinstance(message, Ranges) and hearer is pair.responder:
            earlier = wire.encode(replace(message, incarnation=message.incarnation + 1), list(buffers))
            return [(hearer, envelope._replace(frames=earlier))]
        answers.append(message)
        return []

    pair.play(mangle, until=1.0)
    assert results(pair.responder) == [(INITIATOR, False, "lost")]
    assert End(pair.accept[0].message.exchange, False, "unknown") in answers


def test_refused_payload_names_its_sender() -> None:
    pair = Pair(window=1)

    def mangle(at, item, post):
        hearer, envelope = item
        if hearer is pair.initiator and len(envelope.frames) > 1:
            return [(hearer, envelope._replace(frames=[envelope.frames[0], *(bytes(1) for _ in envelope.frames[1:])]))]
        return [item]

    pair.play(mangle)
    assert {event.peer for event in pair.initiator.of(UpdateRefused)} == {RESPONDER}
