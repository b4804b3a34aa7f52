"""Which offers a peer accepts, the reason of each refusal, and the weight of an accept (algorithms section 7)."""

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import ExchangeEnded, ExchangeStarted, Notice, OfferRefused
from gossipdp.protocol.settings_digest import digest_of
from gossipdp.protocol.wire.messages import Accept, End, Member, Offer, Refuse, State, short
from tests.protocol.pairwise.averaging_rig import A, B, C, Node, an_offer, configured, member, network, pump


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


def test_outbound_only_peers_are_guests__each_meets_once_and_each_dialable_peer_takes_its_share():
    guests = [Member(bytes([letter]) * 32, "g", "", 1, 0, State.ALIVE) for letter in b"cdefghij"]
    node, number, mixed = Node(A, [B, *guests[:4]]), 1 << 32, 1
    node.pacing.trains = True

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
    node.pacing.trains = trains
    node.averaging._offers._matching.matched()
    node.hear(B.id, an_offer(1 << 32 | 1))
    (said,) = [envelope.message for envelope in node.post()]
    assert (said == Refuse(1 << 32 | 1, "done")) is trains and isinstance(said, Accept) is not trains


@pytest.mark.parametrize("alone", [False, True])
def test_last_partner_gets_no_exchange_ahead_while_another_possible_partner_was_refused(alone):
    """T1 seed 6030: one of three peers met no partner for twenty rounds."""
    node = Node(A, [B, C])
    node.pacing.trains = True
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
    node = Node(A, [B], config=configured(codec="modulo4", kappa=0.2))
    node.pacing.trains = True
    node.terms.choose()
    node.hear(B.id, an_offer(1 << 32 | 1, codec="modulo16", weight=0.4, pull=0.3, window=1))
    assert node.post()[0].message == Accept(1 << 32 | 1, "modulo16", 0.4, 0.2, 1, 1)


@pytest.mark.parametrize("version", [3, 4, 5, 6])
@pytest.mark.parametrize("older", [A, B], ids=["initiator", "responder"])
def test_offer_names_blocks_that_both_versions_know(older, version):
    members = [replace(each, version=version) if each is older else each for each in (A, B)]
    nodes = network(*members)
    nodes[A.id].averaging.want(1, 0.0)
    said = pump(nodes)
    form = "/limited" if version >= 6 else "/tensor" if version == 5 else ""
    assert {each.codec for each in said if isinstance(each, Offer | Accept)} == {f"modulo8{form}"}
    for node in nodes.values():
        [ended] = node.of(ExchangeEnded)
        assert (ended.codec, ended.chunks, ended.result) == ("modulo8", ended.of, "done")


@pytest.mark.parametrize("form", ["", "/tensor", "/limited"])
def test_answer_has_the_blocks_of_the_offer__and_the_finer_codec(form):
    node = Node(A, [B])
    node.hear(B.id, an_offer(1 << 32 | 1, codec=f"modulo4{form}"))
    assert node.post()[0].message.codec == f"modulo8{form}"


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
    "changes",
    [
        {"codec": "modulo4/tensor"},
        {"codec": "modulo8"},
        {"codec": "none/tensor"},
        {"weight": 0.9},
        {"pull": 1.0},
        {"window": 9},
    ],
)
def test_accept_that_claims_more_than_was_offered_is_refused(changes):
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    accept = Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2)
    node.hear(B.id, replace(accept, **changes))
    assert [envelope.message for envelope in node.post()] == [End(offer.message.exchange, True, "unwanted")]
    assert node.averaging.partner is None


def test_accept_is_compared_with_the_offer_as_sent_even_if_the_terms_have_changed():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    node.terms.close()
    node.hear(B.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2))
    assert node.averaging.partner == B.id


def test_accept_twice_begins_one_exchange():
    node = Node(A, [B])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    for _ in range(2):
        node.hear(B.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2))
    assert len(node.of(ExchangeStarted)) == 1
    assert not [envelope for envelope in node.post() if isinstance(envelope.message, End)]


def test_accept_from_another_peer_is_unwanted():
    node = Node(A, [B, C])
    node.averaging.want(1, 0.0)
    [offer] = node.post()
    other = C if offer.to == B.id else B
    node.hear(other.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2))
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


@pytest.mark.parametrize(("share", "passes"), [(1.0, 1), (0.0, 0)])
def test_exchange_of_no_weight_hands_nothing_in(share, passes):
    """Weight 0 is that of a peer whose training runs away."""
    nodes = network(A, B)
    nodes[A.id].averaging._pacing.runaway.share = share
    nodes[A.id].averaging.want(1, 0.0)
    pump(nodes)
    assert nodes[A.id].ended == [3]
    assert [nodes[peer.id].averaging.passes for peer in (A, B)] == [passes, passes]
