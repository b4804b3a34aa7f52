"""Chunks in doubt: each kept exchange is settled, or counted by the peer that cannot know (algorithms section 3)."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, ExchangeStarted
from gossipdp.protocol.pairwise import averaging, partner_history
from gossipdp.protocol.pairwise.averaging import FORGOTTEN
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.wire.messages import Ack, Data, End, Offer, Ranges, State
from tests.protocol.pairwise.averaging_rig import SIZE, A, B, C, D, Node, an_offer, half_applied, member, network, pump


def test_exchange_settles_exactly_when_a_failed_partner_returns():
    nodes = half_applied()
    total = sum(np.random.default_rng(node.id[0]).standard_normal(SIZE) for node in nodes.values())
    assert np.abs(total_of(nodes) - total).max() > 0.1
    for node, other in ((nodes[A.id], B), (nodes[B.id], A)):
        node.news(replace(other, state=State.FAILED), 1.0)
    pump(nodes, 1.0, drop=lambda envelope: True)
    assert nodes[A.id].averaging.partner is None and nodes[A.id].averaging.in_doubt == 2
    # No offer goes to a member while a chunk is in doubt with it.
    for node, other in ((nodes[A.id], B), (nodes[B.id], A)):
        node.news(other, 2.0)
    nodes[A.id].averaging.want(1, 2.0)
    assert not [envelope for envelope in nodes[A.id].post() if isinstance(envelope.message, Offer)]
    now = nodes[A.id].averaging._settling[1 << 32 | 1].timer()
    nodes[A.id].averaging.handle_timer(now)
    pump(nodes, now)
    assert nodes[A.id].averaging.in_doubt == 0
    np.testing.assert_allclose(total_of(nodes), total, atol=1e-6)
    assert not nodes[A.id].of(ChunksInDoubt) and not nodes[B.id].of(ChunksInDoubt)


def test_doubts_about_a_partner_that_membership_has_forgotten_are_counted():
    nodes = half_applied()
    for node, other in ((nodes[A.id], B), (nodes[B.id], A)):
        node.news(replace(other, state=State.FAILED), 1.0)
        node.averaging.handle_timer(FORGOTTEN + 1.0)
        node.work(FORGOTTEN + 1.0)
        assert not node.of(ChunksInDoubt), "it may come back"
        del node.averaging._membership.members[other.id]
        node.averaging.handle_timer(FORGOTTEN - 1.0)
        node.work(FORGOTTEN - 1.0)
        assert not node.of(ChunksInDoubt), "membership may not know it yet"
        node.averaging.handle_timer(FORGOTTEN + 1.0)
        node.work(FORGOTTEN + 1.0)
        assert [event.count for event in node.of(ChunksInDoubt)] == [2]
        assert not node.averaging._settling and not node.averaging._logs


def total_of(nodes):
    return sum(node.algorithm.ledger.a.astype(np.float64) for node in nodes.values())


@pytest.mark.parametrize("state", [State.ALIVE, State.LEFT])
def test_doubts_are_counted_when_the_partners_life_is_over(state):
    nodes = half_applied()
    nodes[A.id].news(member(b"b", 2 if state == State.ALIVE else 1, state), 1.0)
    # An initiator that leaves may still be heard (see below).
    nodes[B.id].news(member(b"a", 2), 1.0)
    for node in nodes.values():
        assert [event.count for event in node.of(ChunksInDoubt)] == [2]
        assert [event.result for event in node.of(ExchangeEnded)] == ["lost"]
        assert not node.algorithm._open and not node.averaging._settling and not node.averaging._logs


@pytest.mark.parametrize("initiator", [True, False])
def test_exchange_with_a_restarted_partner_survives_the_late_news_of_its_start(initiator):
    """The offer and the Accept carry the partner's new incarnation. Membership may hear of it later."""
    second = member(b"b", 2)
    nodes = {A.id: Node(A, [B]), B.id: Node(second, [A], incarnation=2)}
    nodes[A.id if initiator else B.id].averaging.want(1, 0.0)
    pump(nodes, drop=lambda envelope: isinstance(envelope.message, Data) and envelope.message.turn == 2)
    nodes[A.id].news(second, 0.1)
    assert nodes[A.id].averaging.partner == B.id and not nodes[A.id].of(ExchangeEnded)


@pytest.mark.parametrize("all_mixed", [True, False])
def test_initiator_left__and_its_end_arrives_later_on_another_lane(all_mixed):
    nodes = network(A, B)
    a, b, late = nodes[A.id], nodes[B.id], []
    a.averaging.want(1, 0.0)

    def last_word(envelope):
        late.extend([envelope.message] if isinstance(envelope.message, End) else [])
        return isinstance(envelope.message, End)

    # Without Ranges A stops with two chunks open, and never opens the third.
    pump(nodes, drop=lambda envelope: last_word(envelope) or (not all_mixed and isinstance(envelope.message, Ranges)))
    a.averaging.stop(0.5)
    a.averaging.handle_timer(1.5)
    pump(nodes, 1.5, drop=last_word)
    assert late and a.averaging.at_rest
    b.news(replace(A, state=State.LEFT), 2.0)
    assert b.averaging.partner is None, "B does not wait for a peer that has left"
    assert [event.result for event in b.of(ExchangeEnded)] == ["done" if all_mixed else "cut"]
    for message in late:
        b.hear(A.id, message, now=2.1)
    assert b.averaging.at_rest and b.averaging.timer() is None and not b.of(ChunksInDoubt)


def test_initiator_left_without_an_end__its_doubts_are_counted_once():
    nodes = half_applied()
    b = nodes[B.id]
    b.news(replace(A, state=State.LEFT), 1.0)
    assert b.averaging.partner is None and not b.of(ChunksInDoubt)
    due = b.averaging.timer()
    assert 1.0 < due <= 1.0 + Deadlines().doubt
    for _ in range(2):
        b.averaging.handle_timer(due)
        b.work(due)
    assert [event.count for event in b.of(ChunksInDoubt)] == [2]
    assert b.averaging.at_rest and b.averaging.timer() is None


def test_chunk_mixed_after_the_exchange_was_lost_is_still_reported():
    """Corrections of a chunk whose doubt is settled late must also reach the training process."""
    nodes = half_applied()
    nodes[A.id].news(replace(B, state=State.FAILED), 1.0)
    pump(nodes, 1.0, drop=lambda envelope: True)
    assert nodes[A.id].ended == [0]
    nodes[A.id].averaging.handle_timer(nodes[A.id].averaging._settling[1 << 32 | 1].timer())
    pump(nodes, 7.0)
    assert nodes[A.id].ended == [0] and len(nodes[A.id].pacing.distances) == 2
    assert math.isnan(nodes[A.id].distance), "two chunks of three do not give the distance of the whole"


@pytest.mark.parametrize(("later", "counted"), [(1, []), (2, [2])])
def test_new_offer_settles_the_old_exchange_or_counts_it_if_it_comes_from_a_later_life(later, counted):
    """Membership may hear of the partner's restart after its first offer."""
    nodes = half_applied()
    node = nodes[B.id]
    node.hear(A.id, an_offer(later << 32 | 2), now=1.0)
    assert node.averaging.partner == A.id
    assert [event.count for event in node.of(ChunksInDoubt)] == counted


def star(*others):
    """B knows all the others. Each of them knows B only."""
    return {B.id: Node(B, others), **{other.id: Node(other, [B]) for other in others}}


def half_apply(nodes, initiator, responder, now):
    """The responder has mixed, its acknowledgements are lost, and each believes that the other failed."""
    only = {peer.id: nodes[peer.id] for peer in (initiator, responder)}
    nodes[initiator.id].averaging.want(1, now)
    pump(only, now, drop=lambda envelope: isinstance(envelope.message, Ack))
    nodes[initiator.id].news(replace(responder, state=State.FAILED), now)
    nodes[responder.id].news(replace(initiator, state=State.FAILED), now)
    pump(only, now, drop=lambda envelope: True)


def counted(node):
    return [(event.partner, event.count) for event in node.of(ChunksInDoubt)]


def test_log_that_must_make_room_counts_its_doubts_and_its_initiator_gets_unknown(monkeypatch):
    monkeypatch.setattr(averaging, "MAX_LOGS", 2)
    nodes = star(A, C, D)
    a, b = nodes[A.id], nodes[B.id]
    for number, other in enumerate((A, C)):
        half_apply(nodes, other, B, float(number))
    assert not counted(b) and len(b.averaging._logs) == 2 and a.averaging.in_doubt == 2
    half_apply(nodes, D, B, 2.0)
    assert list(b.averaging._logs) == [C.id, D.id], "the oldest made room"
    assert counted(b) == [(A.id, 2)], "B can no longer learn which chunks A mixed"
    assert not [key for key in b.algorithm._open if key.initiator == A.id]
    for node, other in ((a, B), (nodes[C.id], B), (b, A), (b, C)):
        node.news(other, 3.0)
    for peer in (A, C):
        node = nodes[peer.id]
        node.averaging.handle_timer(9.0)
        pump({B.id: b, peer.id: node}, 9.0)
    assert counted(a) == [(B.id, 2)] and not counted(nodes[C.id]), "C has settled, A never can"
    assert a.averaging.at_rest and counted(b) == [(A.id, 2)]


def test_lost_exchange_past_the_limit_is_counted_once_and_the_later_one_settles(monkeypatch):
    monkeypatch.setattr(averaging, "MAX_SETTLING", 1)
    nodes = {A.id: Node(A, [B]), B.id: Node(B, [A]), C.id: Node(C, [A])}
    a = nodes[A.id]
    half_apply(nodes, A, B, 0.0)
    assert not counted(a) and a.averaging.in_doubt == 2
    a.news(C, 0.5)
    half_apply(nodes, A, C, 1.0)
    assert counted(a) == [(B.id, 2)] and a.averaging.in_doubt == 2, "the older was given up, the later one is kept"
    for node, other in ((a, B), (a, C), (nodes[B.id], A), (nodes[C.id], A)):
        node.news(other, 2.0)
    a.averaging.handle_timer(9.0)
    pump(nodes, 9.0)
    a.averaging.want(2, 20.0)
    pump(nodes, 20.0)
    assert counted(a) == [(B.id, 2)] and not counted(nodes[B.id]) and not counted(nodes[C.id])
    assert all(node.averaging.at_rest and not node.averaging._logs for node in nodes.values())
    assert sorted(event.partner for event in a.of(ExchangeEnded) if event.result == "done") == [B.id, C.id]


def test_remembered_partners_are_bounded(monkeypatch):
    monkeypatch.setattr(partner_history, "MOST", 3)
    many = [member(bytes([letter])) for letter in range(1, 12)]
    node = Node(A, many)
    for other in many:
        node.hear(other.id, an_offer(1 << 32 | 1))
        node.hear(other.id, End(1 << 32 | 1, True, "settled"))
        known = node.averaging._offers._known
        assert max(len(table) for table in (known._latest, known._met, known._wasted)) <= 3
    assert len(node.of(ExchangeStarted)) == len(many)
    node.hear(many[-1].id, an_offer(1 << 32 | 1))
    assert len(node.of(ExchangeStarted)) == len(many), "a late copy of a latest offer begins nothing"
