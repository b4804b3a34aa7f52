"""Offers and answers between peers (algorithms section 7), and exchanges when membership has news."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from gossipdp.protocol.events import (
    ChunksInDoubt,
    ExchangeEnded,
    ExchangeStarted,
    Notice,
    OfferRefused,
)
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise import averaging, partner_history
from gossipdp.protocol.pairwise.averaging import FORGOTTEN, Averaging
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import BUSY, IDLE, MatchingConfig
from gossipdp.protocol.pairwise.offers import IDLE_FOR
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.settings_digest import digest_of
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Accept, Ack, Ask, Data, End, Member, Offer, Ranges, Refuse, State, short
from tests.protocol.surroundings import surroundings

SIZE = 2 * 8192 + 600
SETTINGS = b"the settings...."
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])


class Members:
    """The part of membership that averaging reads."""

    def __init__(self, me, others):
        self.me = me
        self.members = {member.id: member for member in [me, *others]}

    def alive(self):
        states = (State.ALIVE, State.SUSPECT)
        return [m for i, m in sorted(self.members.items()) if i != self.me.id and m.state in states]

    def rtt(self, peer):
        return 0.01

    def address_of(self, peer):
        return self.members[peer].address

    def linked(self, peer):
        return True


class Node:
    def __init__(self, me, others, *, incarnation=1, config=None, schema=SCHEMA, settings=SETTINGS, keys=()):
        self.outputs, self.events, self.ended = Outputs(), [], []
        self.membership = Members(replace(me, incarnation=incarnation), others)
        self.terms = SimpleNamespace(codec="modulo8", pull=0.0, window=2, trains=False)
        self.shuns = lambda peer, now: False
        self.algorithm = Pairwise()
        self.algorithm.allocate(SIZE, SIZE, 8192)
        self.algorithm.ledger.a[:] = np.random.default_rng(me.id[0]).standard_normal(SIZE)
        self.algorithm._step[:] = 10.0 * math.sqrt(SIZE)  # so that nothing is clipped
        self.id = me.id
        self.averaging = Averaging(
            config or configured(),
            surroundings(
                self.membership,
                random=Random(me.id[0]),
                outputs=self.outputs,
                settings=settings,
                keys=keys,
                shuns=self._shuns,
            ),
            self.terms,
            ended=self._has_ended,
        )
        self.distance = math.nan
        self.averaging.ready(Model(schema=schema, schema_bytes=schema.to_bytes(), settings=SETTINGS, clock=0, rounds=0))

    def _shuns(self, peer, now):
        return self.shuns(peer, now)

    def _has_ended(self, chunks, duration, distance, now):
        self.ended.append(chunks)
        self.distance = distance

    def work(self, now):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(result, jobs.Turn):
                self.averaging.job_done(job, result, now)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def post(self, now=0.0):
        self.work(now)
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def hear(self, source, message, buffers=(), now=0.0):
        message, buffers = wire.decode(wire.encode(message, buffers))
        self.averaging.receive(message, list(buffers), source, 50, now)
        self.work(now)

    def news(self, member, now=0.0):
        self.membership.members[member.id] = member
        self.averaging.member_changed(member, now)
        self.work(now)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def member(letter, incarnation=1, state=State.ALIVE):
    return Member(letter * 32, letter.decode(), f"{letter.decode()}:1", incarnation, 0, state)


def configured(**changes):
    fineness = {name: codec.fineness for name, codec in CODECS.items()}
    return PairwiseConfig(fineness=fineness, window=2, **changes)


A, B, C, D = (member(letter) for letter in (b"a", b"b", b"c", b"d"))


def network(*members, **options):
    return {me.id: Node(me, [other for other in members if other is not me], **options) for me in members}


def pump(nodes, now=0.0, drop=lambda envelope: False):
    """Deliver messages until no peer has any to send."""
    seen = []
    while batch := [(node, envelope) for node in nodes.values() for envelope in node.post(now)]:
        for node, envelope in batch:
            seen.append(envelope.message)
            if not drop(envelope) and envelope.to in nodes:
                message, buffers = wire.decode(envelope.frames)
                nodes[envelope.to].averaging.receive(message, list(buffers), node.id, 50, now)
                nodes[envelope.to].work(now)
    return seen


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
        assert not one._offers._known.left_alone([other.id, C.id], now) and one._timing.pace == pytest.approx(1e-4)


def test_partner_that_asks_for_a_much_lower_rate_is_left_alone_for_a_while():
    nodes = network(A, B, C)
    nodes[B.id] = Node(B, (A, C), config=configured(rate=125e3))
    a = nodes[A.id].averaging
    a._timing.exchanged(1, 1e-4)
    now = slow_exchange(nodes)
    assert a._offers._known.left_alone([B.id, C.id], now)


def test_first_chunk_rotates_from_exchange_to_exchange():
    nodes = network(A, B)
    firsts = []
    for number in range(3):
        nodes[A.id].averaging.want(1, float(number))
        said = pump(nodes, float(number))
        firsts.append(next(message.chunk for message in said if isinstance(message, Ranges)))
    # All chunks were opened, so the next exchange begins with the same first chunk.
    assert firsts == [0, 0, 0]
    nodes[A.id].averaging.want(1, 5.0)
    offer = nodes[A.id].post()[0]
    nodes[B.id].hear(A.id, offer.message)
    [accept] = nodes[B.id].post()
    nodes[A.id].hear(B.id, accept.message)
    nodes[A.id].averaging._active.finish_early(5.0)
    pump(nodes, 5.0)
    nodes[A.id].averaging.want(1, 6.0)
    said = pump(nodes, 6.0)
    assert next(message.chunk for message in said if isinstance(message, Ranges)) == 2


def test_of_two_crossing_offers_the_lower_ids_holds():
    nodes = network(A, B)
    for node in nodes.values():
        node.averaging.want(1, 0.0)
    said = pump(nodes)
    accepts = [message for message in said if isinstance(message, Accept)]
    assert len(accepts) == 1 and not [message for message in said if isinstance(message, Refuse)]
    assert nodes[A.id].of(ExchangeStarted)[0].initiator and not nodes[B.id].of(ExchangeStarted)[0].initiator
    assert all(node.averaging._offers._matching.wanted == 0 for node in nodes.values())


def test_offer_of_a_third_peer_is_refused_as_busy_while_an_own_offer_is_out():
    nodes = network(A, B, C)
    nodes[A.id].averaging.want(1, 0.0)
    offer = nodes[A.id].post()[0]
    third = C if offer.to == B.id else B
    nodes[A.id].hear(third.id, an_offer(1 << 32 | 1))
    assert nodes[A.id].post()[0].message == Refuse(1 << 32 | 1, "busy")


def an_offer(exchange, **changes):
    fields = {
        "schema": SCHEMA.digest,
        "settings": SETTINGS,
        "codec": "modulo8",
        "weight": 0.5,
        "pull": 0.0,
        "first": 0,
        "window": 2,
    }
    return Offer(exchange, **{**fields, **changes})


def test_outbound_only_peers_are_guests__each_meets_once_and_each_dialable_peer_takes_its_share():
    guests = [Member(bytes([letter]) * 32, "g", "", 1, 0, State.ALIVE) for letter in b"cdefghij"]
    node, number, mixed = Node(A, [B, *guests[:4]]), 1 << 32, 1
    node.terms.trains = True

    def accepted(source, now=0.0):
        nonlocal number
        number += 1
        node.hear(source.id, an_offer(number), now=now)
        answer = node.post(now)[0].message
        if isinstance(answer, Accept):
            node.averaging._active.tally.chunks = mixed
            node.averaging._active.close("cut", now)
            node.averaging.step(now)
            node.post()
        else:
            assert answer == Refuse(number, "done")
        return isinstance(answer, Accept)

    matching = node.averaging._offers._matching
    node.averaging.want(0, 0.0)
    matching.ahead = 1
    assert not accepted(B) and accepted(guests[0]) and not accepted(guests[0]) and accepted(guests[1])
    assert not accepted(guests[2]), "four to two: two a round"
    assert matching.ahead == 1
    node.averaging.want(0, 100.0)
    assert [accepted(guest, 100.0) for guest in guests[:4]] == [True, True, False, False]
    mixed = 0
    node.averaging.want(0, 200.0)
    assert [accepted(guest, 200.0) for guest in guests[:4]] == [True, True, True, True], "nothing came of it"
    mixed = 1
    del node.membership.members[B.id]
    for guest in guests[4:]:
        node.membership.members[guest.id] = guest
    for now in (300.0, 400.0, 500.0, 600.0):
        node.averaging.want(0, now)
        came = [accepted(guest, now) for guest in guests]
        assert came == [now in (400.0, 600.0)] * 4 + [now in (300.0, 500.0)] * 4, "eight to one: four, and four"


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("schema", {"schema": b"another schema.."}),
        ("settings", {"settings": b"other settings.."}),
        ("codec", {"codec": "modulo99"}),
    ],
)
def test_offer_that_does_not_fit_is_refused_with_the_reason(reason, changes):
    node = Node(A, [B])
    node.hear(B.id, an_offer(1 << 32 | 1, **changes))
    assert [envelope.message for envelope in node.post()] == [Refuse(1 << 32 | 1, reason)]
    assert node.averaging.at_rest


def test_offer_with_other_settings_raises_gd_303_once_per_partner_and_names_the_keys():
    keys, mine = ("exchange.algorithm", "outer.lr"), {"exchange.algorithm": "pairwise", "outer.lr": "0.7"}
    node = Node(A, [B, C], settings=digest_of(mine), keys=keys)
    other, third = digest_of({**mine, "outer.lr": "0.6"}), digest_of({**mine, "outer.lr": "0.5"})
    for number, (partner, settings) in enumerate([(B, other), (B, other), (C, other), (B, other), (B, third)], 1):
        node.hear(partner.id, an_offer(1 << 32 | number, settings=settings))
    node.post()
    told = [(event.code, event.text.partition(" runs")[0]) for event in node.of(Notice)]
    assert told == [("GD-303", f"member {short(peer.id)}") for peer in (B, C)], "whatever B says next"
    assert all("than this peer (outer.lr):" in event.text for event in node.of(Notice))


def test_offer_before_the_model_has_come_is_refused_as_joining():
    node = Node(A, [B])
    node.averaging._model = None
    node.hear(B.id, an_offer(1 << 32 | 1))
    assert [envelope.message for envelope in node.post()] == [Refuse(1 << 32 | 1, "joining")]


def test_offer_after_stop_is_refused_as_leaving():
    node = Node(A, [B])
    node.averaging.stop(0.0)
    node.hear(B.id, an_offer(1 << 32 | 1))
    assert [envelope.message for envelope in node.post()] == [Refuse(1 << 32 | 1, "leaving")]
    assert node.averaging.timer() is None


def test_offer_while_averaging_is_refused_as_busy():
    node = Node(A, [B, C])
    node.hear(B.id, an_offer(1 << 32 | 1))
    node.post()
    node.hear(C.id, an_offer(1 << 32 | 9))
    assert [envelope.message for envelope in node.post()] == [Refuse(1 << 32 | 9, "busy")]


@pytest.mark.parametrize("known", [{"incarnation": 2}, {"state": State.FAILED}, {"state": State.LEFT}])
def test_offer_of_an_earlier_life_or_of_a_failed_member_is_not_accepted(known):
    node = Node(A, [member(b"b", **known)])
    node.hear(B.id, an_offer(1 << 32 | 1))
    assert [envelope.message for envelope in node.post()] == [Refuse(1 << 32 | 1, "busy")]
    assert node.averaging.partner is None and node.averaging.at_rest


@pytest.mark.parametrize("trains", [True, False])
def test_offer_to_a_peer_that_trains_is_refused_once_it_is_a_round_ahead(trains):
    node = Node(A, [B])
    node.terms.trains = trains
    node.averaging._offers._matching.matched()
    node.hear(B.id, an_offer(1 << 32 | 1))
    (said,) = [envelope.message for envelope in node.post()]
    assert (said == Refuse(1 << 32 | 1, "done")) is trains and isinstance(said, Accept) is not trains


@pytest.mark.parametrize("alone", [False, True])
def test_last_partner_gets_no_exchange_ahead_while_another_possible_partner_was_refused(alone):
    """T1 seed 6030: one of three peers met no partner for twenty rounds."""
    node = Node(A, [B, C])
    node.terms.trains = True
    matching = node.averaging._offers._matching
    matching.matched()
    matching.parted(B.id, 0.1)
    if alone:
        node.averaging._offers._known.parted(C.id, 0, 60.0, 1.0, 0.0)
    node.hear(C.id, an_offer(1 << 32 | 1))
    node.averaging.want(1, 1.0)
    node.hear(B.id, an_offer(1 << 32 | 1), now=1.0)
    said = [type(envelope.message) for envelope in node.post(1.0) if not isinstance(envelope.message, Offer)]
    assert said == [Refuse, Accept if alone else Refuse]


def test_duplicate_offer_is_accepted_once_with_the_same_answer():
    node = Node(A, [B])
    for _ in range(2):
        node.hear(B.id, an_offer(1 << 32 | 1))
    first, second = [envelope.message for envelope in node.post()]
    assert first == second and len(node.of(ExchangeStarted)) == 1


def test_offer_that_arrives_again_after_its_exchange_begins_nothing():
    """Otherwise a delayed copy, followed by copies of the chunks, would mix the same chunks twice."""
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    [offer] = nodes[A.id].post()
    nodes[B.id].hear(A.id, offer.message)
    pump(nodes)
    nodes[B.id].hear(A.id, offer.message, now=9.0)
    assert nodes[B.id].averaging.at_rest and not nodes[B.id].post()


def test_terms_are_the_finer_codec_and_the_smaller_of_the_rest():
    node = Node(A, [B])
    node.terms.codec, node.terms.pull = "modulo4", 0.2
    node.hear(B.id, an_offer(1 << 32 | 1, codec="modulo16", weight=0.4, pull=0.3, window=1))
    assert node.post()[0].message == Accept(1 << 32 | 1, "modulo16", 0.4, 0.2, 1, 1)


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


def test_new_offer_after_a_lost_end_supersedes_the_old_exchange():
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    [offer] = nodes[A.id].post()
    nodes[B.id].hear(A.id, offer.message)
    [accept] = nodes[B.id].post()
    nodes[A.id].hear(B.id, accept.message)
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
    nodes[A.id].averaging.want(1, 0.0)
    [offer] = nodes[A.id].post()
    nodes[B.id].hear(A.id, offer.message)
    [accept] = nodes[B.id].post()
    nodes[A.id].hear(B.id, accept.message)
    before = nodes[A.id].algorithm.ledger.a.copy()
    exchange = offer.message.exchange
    nodes[A.id].hear(C.id, Data(exchange, 0, 1, 1.0), [b"x", b"y"])
    nodes[A.id].hear(C.id, End(exchange, False, "unknown"))
    assert nodes[A.id].averaging.partner == B.id and (nodes[A.id].algorithm.ledger.a == before).all()


def half_applied():
    """A and B in the middle of an exchange: B has mixed, its acknowledgements are lost."""
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    pump(nodes, drop=lambda envelope: isinstance(envelope.message, Ack))
    return nodes


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


def test_exchange_longer_than_a_round_is_cut():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.hear(B.id, Accept(offer.message.exchange, "modulo8", 0.5, 0.0, 2))
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


def test_chunk_mixed_after_the_exchange_was_lost_is_still_reported():
    """Corrections of a chunk whose doubt is settled late must also reach the training process."""
    nodes = half_applied()
    nodes[A.id].news(replace(B, state=State.FAILED), 1.0)
    pump(nodes, 1.0, drop=lambda envelope: True)
    assert nodes[A.id].ended == [0]
    nodes[A.id].averaging.handle_timer(nodes[A.id].averaging._settling[1 << 32 | 1].timer())
    pump(nodes, 7.0)
    assert nodes[A.id].ended == [0, 1, 1]
    assert math.isnan(nodes[A.id].distance), "two chunks of three do not give the distance of the whole"


@pytest.mark.parametrize(("later", "counted"), [(1, []), (2, [2])])
def test_new_offer_settles_the_old_exchange_or_counts_it_if_it_comes_from_a_later_life(later, counted):
    """Membership may hear of the partner's restart after its first offer."""
    nodes = half_applied()
    node = nodes[B.id]
    node.hear(A.id, an_offer(later << 32 | 2), now=1.0)
    assert node.averaging.partner == A.id
    assert [event.count for event in node.of(ChunksInDoubt)] == counted


def test_stop_withdraws_the_offer_that_is_out_and_a_late_accept_begins_nothing():
    a, b = network(A, B).values()
    a.averaging.want(1, 0.0)
    (envelope,) = a.post()
    a.averaging.stop(0.0)
    assert [type(sent.message) for sent in a.post()] == [End]
    a.hear(b.id, Accept(envelope.message.exchange, "modulo8", 0.5, 0.0, 2, 1))
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


# -- kept exchanges are bounded: each chunk is settled, or counted by the peer that cannot know ---------------------


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


# -- members set aside, and members that waste time -------------------------------------------------------------


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


def test_idle_member__refuses_an_offer_and_is_not_asked_again_until_it_offers_one_itself():
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: IDLE
    a.want(1, 0.0)
    assert [type(message) for message in pump(nodes)] == [Offer, Refuse]
    assert not a.company and a.satisfied, "a round in mode sync does not wait for it"
    a.want(1, 1.0)
    a.handle_timer(2.0)
    assert pump(nodes, 2.0) == []
    b._offers.rests = lambda: ""
    b.want(1, 3.0)
    pump(nodes, 3.0)
    assert [event.result for event in nodes[A.id].of(ExchangeEnded)] == ["done"] and a.company == {B.id}


def test_idle_member__is_asked_again_after_a_while():
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: IDLE
    a.want(1, 0.0)
    pump(nodes)
    b._offers.rests = lambda: ""
    a.handle_timer(IDLE_FOR + 1.0)
    pump(nodes, IDLE_FOR + 1.0)
    assert nodes[A.id].ended == [3]


def test_where_all_others_are_idle__no_notice_about_missing_partners_is_given():
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: IDLE
    a.want(1, 0.0)
    for now in range(0, 120, 2):
        a.handle_timer(float(now))
        pump(nodes, float(now))
    assert nodes[A.id].of(Notice) == []


def test_idle_member__that_still_wants_an_exchange__has_no_timer_until_it_trains_again():
    a = network(A)[A.id].averaging
    a.want(1, 0.0)
    assert a.timer() is not None
    a._offers.rests = lambda: IDLE
    assert a.timer() is None
    a._offers.rests = lambda: ""
    assert a.timer() is not None


def test_member_that_makes_its_first_round_in_mode_sync__is_waited_for():
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: BUSY
    a.want(1, 0.0)
    pump(nodes)
    assert a.company == {B.id} and not a.satisfied
    b._offers.rests = lambda: ""
    now = a.timer()
    a.handle_timer(now)
    pump(nodes, now)
    assert nodes[A.id].ended == [3] and a.satisfied
