"""The weight that an accept gives, the accepts that begin an exchange, and offers without an answer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import ExchangeStarted, OfferRefused
from gossipdp.protocol.wire.messages import Accept, End, Offer, Refuse, State
from tests.protocol.pairwise.averaging_rig import A, B, C, Node, an_offer, member, network, pump


def test_newcomer_has_a_tenth_of_the_weight_at_first_and_all_of_it_ten_rounds_later():
    node = Node(A, [B])
    node.news(B)
    for number in range(40):
        node.averaging.want(0, float(number))
    node.news(C)
    node.hear(C.id, an_offer(1 << 32 | 1))
    assert node.post()[0].message.weight == pytest.approx(0.05)
    node.hear(C.id, End(1 << 32 | 1, True, "unwanted"))
    node.news(member(b"b", state=State.LEFT))
    node.averaging.want(1, 41.0)
    assert node.post(41.0)[-1].message.weight == pytest.approx(0.1), "the second round since"
    node.averaging.stop(41.5)
    assert node.averaging._offers._wish(B.id) == 0.5, "found at the start"
    for number in range(42, 51):
        node.averaging.want(0, float(number))
    assert node.averaging._offers._wish(C.id) == 0.5


def test_member_that_restarts_is_no_newcomer():
    node = Node(A, [B])
    node.news(B)
    for number in range(40):
        node.averaging.want(0, float(number))
    node.news(member(b"b", state=State.FAILED))
    node.news(member(b"b", incarnation=2))
    node.hear(B.id, an_offer(2 << 32 | 1))
    assert node.post()[0].message.weight == 0.5


@pytest.mark.parametrize(
    "changes", [{"codec": "modulo4"}, {"codec": "none"}, {"weight": 0.9}, {"pull": 1.0}, {"window": 9}]
)
def test_accept_that_claims_more_than_was_offered_is_refused(changes):
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    accept = Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2)
    node.hear(B.id, replace(accept, **changes))
    assert [envelope.message for envelope in node.post()] == [End(offer.message.exchange, True, "unwanted")]
    assert node.averaging.partner is None


def test_accept_is_compared_with_the_offer_as_sent_even_if_the_terms_have_changed():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.terms.codec, node.terms.pull = "modulo16", 0.0
    node.hear(B.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2))
    assert node.averaging.partner == B.id


def test_accept_twice_begins_one_exchange():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    for _ in range(2):
        node.hear(B.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2))
    assert len(node.of(ExchangeStarted)) == 1
    assert not [envelope for envelope in node.post() if isinstance(envelope.message, End)]


def test_accept_from_another_peer_is_unwanted():
    node = Node(A, [B, C])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    other = C if offer.to == B.id else B
    node.hear(other.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2))
    assert [envelope.message for envelope in node.post()] == [End(offer.message.exchange, True, "unwanted")]


def test_unanswered_offer_is_repeated_once_then_withdrawn():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    half = node.averaging.timer()
    node.averaging.handle_timer(half)
    assert [envelope.message for envelope in node.post()] == [offer.message]
    whole = node.averaging.timer()
    assert whole == pytest.approx(2 * half)
    node.averaging.handle_timer(whole)
    assert node.post()[0].message == End(offer.message.exchange, True, "unwanted")
    assert [event.reason for event in node.of(OfferRefused)] == ["silent"]
    assert node.averaging.timer() > whole


def test_refused_offer_goes_to_another_after_a_pause():
    node = Node(A, [B, C])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.hear(offer.to, Refuse(offer.message.exchange, "busy"))
    assert not node.post()
    due = node.averaging.timer()
    assert 0.05 <= due <= 0.1
    node.averaging.handle_timer(due)
    [again] = node.post()
    assert again.to != offer.to and again.message.exchange == offer.message.exchange + 1


def test_lost_accept_and_withdrawn_offer_free_the_responder():
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    pump(nodes, drop=lambda envelope: isinstance(envelope.message, Accept))
    assert nodes[B.id].averaging.partner == A.id
    nodes[A.id].averaging.handle_timer(5.0)
    pump(nodes, 5.0, drop=lambda envelope: isinstance(envelope.message, Offer))
    assert nodes[B.id].averaging.partner is None
