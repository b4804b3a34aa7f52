"""Members that get no offers: set aside, wasting time, or without rounds of their own."""

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.events import ExchangeEnded, ExchangeStarted, Notice
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.pairwise.offers import IDLE_FOR
from gossipdp.protocol.wire.messages import Accept, End, Offer, Refuse
from tests.protocol.pairwise.averaging_rig import A, B, C, Node, an_offer, configured, network, pump


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
    node.hear(B.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2))
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
            node.hear(B.id, Accept(offer.message.exchange, offer.message.codec, 0.5, 0.0, 2), now=now)
            now += 15.0
            node.averaging.handle_timer(now)
            node.work(now)
            assert [event.result for event in node.of(ExchangeEnded)][-1] == "lost"
        else:
            node.hear(C.id, Refuse(offer.message.exchange, "busy"), now=now)
            now += 1.0
    assert B.id in chosen and B.id not in chosen[chosen.index(B.id) + 1 :]


def wanting_one_that_rests(why):
    """Two peers, the first of which wants an exchange. The second refuses its offers with this reason."""
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: why
    a.want(1, 0.0)
    return nodes, a, b


def test_idle_member__refuses_an_offer_and_is_not_asked_again_until_it_offers_one_itself():
    nodes, a, b = wanting_one_that_rests(Objection.IDLE)
    assert [type(message) for message in pump(nodes)] == [Offer, Refuse]
    assert not a.company and a.satisfied, "a round in mode sync does not wait for it"
    a.want(1, 1.0)
    a.handle_timer(2.0)
    assert pump(nodes, 2.0) == []
    b._offers.rests = lambda: None
    b.want(1, 3.0)
    pump(nodes, 3.0)
    assert [event.result for event in nodes[A.id].of(ExchangeEnded)] == ["done"] and a.company == {B.id}


def test_idle_member__is_asked_again_after_a_while():
    nodes, a, b = wanting_one_that_rests(Objection.IDLE)
    pump(nodes)
    b._offers.rests = lambda: None
    a.handle_timer(IDLE_FOR + 1.0)
    pump(nodes, IDLE_FOR + 1.0)
    assert nodes[A.id].ended == [3]


def test_where_all_others_are_idle__no_notice_about_missing_partners_is_given():
    nodes, a, _ = wanting_one_that_rests(Objection.IDLE)
    for now in range(0, 120, 2):
        a.handle_timer(float(now))
        pump(nodes, float(now))
    assert nodes[A.id].of(Notice) == []


def test_idle_member_whose_mark_runs_out_during_a_pause__gives_no_notice_either():
    nodes, a, _ = wanting_one_that_rests(Objection.IDLE)
    now = 0.0
    while now < 25.0:
        a.handle_timer(now)
        pump(nodes, now)
        now += 2.0
    a._offers._matching._not_before = 1000.0  # after refusals without end
    a.handle_timer(90.0)
    pump(nodes, 90.0)
    assert a.company == {B.id}, "it is asked again, after the pause"
    assert nodes[A.id].of(Notice) == []


def test_idle_member__that_still_wants_an_exchange__has_no_timer_until_it_trains_again():
    a = network(A)[A.id].averaging
    a.want(1, 0.0)
    assert a.timer() is not None
    a._offers.rests = lambda: Objection.IDLE
    assert a.timer() is None
    a._offers.rests = lambda: None
    assert a.timer() is not None


def test_member_that_makes_its_first_round_in_mode_sync__is_waited_for():
    nodes, a, b = wanting_one_that_rests(Objection.BUSY)
    pump(nodes)
    assert a.company == {B.id} and not a.satisfied
    b._offers.rests = lambda: None
    now = a.timer()
    a.handle_timer(now)
    pump(nodes, now)
    assert nodes[A.id].ended == [3] and a.satisfied
