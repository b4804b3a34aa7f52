"""Exchanges with members set aside, and with members that waste time."""

from __future__ import annotations

from gossipdp.protocol.events import ExchangeEnded, ExchangeStarted, Notice
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.wire.messages import Accept, End, Offer, Refuse
from tests.protocol.pairwise.averaging_rig import A, B, C, Node, an_offer, configured


def test_offer_of_a_member_set_aside_is_refused_until_its_pause_is_over():
    node = Node(A, [B, C])
    node.shuns = lambda peer, now: peer == B.id and now < 60.0
    node.hear(B.id, an_offer(1 << 32 | 1), now=1.0)
    assert [envelope.message for envelope in node.post(1.0)] == [Refuse(1 << 32 | 1, "aside")]
    node.hear(B.id, an_offer(1 << 32 | 2), now=60.0)
    assert [type(envelope.message) for envelope in node.post(60.0)] == [Accept]


def test_partner_is_chosen_among_members_not_set_aside_and_a_notice_says_why_none_is_left():
    node = Node(A, [B, C], config=configured(matching=MatchingConfig(lonely=5.0)))
    node.shuns = lambda peer, now: peer == B.id
    chosen = set()
    for number in range(20):
        node.averaging.want(1, float(number))
        for envelope in node.post(float(number)):
            if isinstance(envelope.message, Offer):
                chosen.add(envelope.to)
                node.hear(envelope.to, Refuse(envelope.message.exchange, "busy"), now=float(number))
    assert chosen == {C.id}
    node.shuns = lambda peer, now: True
    node.averaging.want(1, 40.0)
    node.averaging.handle_timer(50.0)
    node.work(50.0)
    assert "62626262 aside, 63636363 aside" in node.of(Notice)[-1].text


def test_accept_of_a_member_set_aside_meanwhile_begins_nothing():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.shuns = lambda peer, now: True
    node.hear(B.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2))
    assert End(offer.message.exchange, True, "unwanted") in [envelope.message for envelope in node.post()]
    assert not node.of(ExchangeStarted)


def test_exchange_with_a_member_set_aside_ends_at_the_next_chunk():
    node = Node(A, [B])
    node.hear(B.id, an_offer(1 << 32 | 1))
    node.post()
    node.shuns = lambda peer, now: True
    node.averaging.step(1.0)
    assert [envelope.message for envelope in node.post(1.0)] == [End(1 << 32 | 1, False, "aside")]
    assert node.averaging.partner is None


def test_repeated_offers_that_mix_nothing_leave_time_for_others():
    """A flood of offers. Each new one gives up the exchange before it."""
    node = Node(A, [B, C])
    accepted = 0
    for number in range(1, 500):
        node.hear(B.id, an_offer(1 << 32 | number), now=number / 100)
        accepted += sum(isinstance(envelope.message, Accept) for envelope in node.post(number / 100))
    assert 1 <= accepted <= 8 and node.averaging.partner is None
    node.hear(C.id, an_offer(1 << 32 | 1), now=5.0)
    assert [type(envelope.message) for envelope in node.post(5.0)] == [Accept]


def test_member_that_wasted_time_is_accepted_where_there_is_no_other():
    node = Node(A, [B])
    for number in range(1, 9):
        node.hear(B.id, an_offer(1 << 32 | number), now=float(number))
        assert [type(envelope.message) for envelope in node.post(float(number))] == [Accept]


def test_silent_partner_is_not_chosen_again_at_once_if_there_is_another():
    node = Node(A, [B, C])
    now, chosen = 0.0, []
    for _ in range(6):
        node.averaging.want(1, now)
        while not (sent := [envelope for envelope in node.post(now) if isinstance(envelope.message, Offer)]):
            now = node.averaging.timer()
            node.averaging.handle_timer(now)
        [offer] = sent
        chosen.append(offer.to)
        if offer.to == B.id:
            node.hear(B.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2), now=now)
            now += 15.0
            node.averaging.handle_timer(now)
            node.work(now)
            assert [event.result for event in node.of(ExchangeEnded)][-1] == "lost"
        else:
            node.hear(C.id, Refuse(offer.message.exchange, "busy"), now=now)
            now += 1.0
    assert B.id in chosen and B.id not in chosen[chosen.index(B.id) + 1 :]
