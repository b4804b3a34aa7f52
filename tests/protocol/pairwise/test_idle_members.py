"""Members whose training makes no rounds: they get no offers until they train again."""

from __future__ import annotations

from gossipdp.protocol.events import ExchangeEnded, Notice
from gossipdp.protocol.pairwise.matching import BUSY, IDLE
from gossipdp.protocol.pairwise.offers import IDLE_FOR
from gossipdp.protocol.wire.messages import Offer, Refuse
from tests.protocol.pairwise.averaging_rig import A, B, network, pump


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


def test_idle_member_whose_mark_runs_out_during_a_pause__gives_no_notice_either():
    nodes = network(A, B)
    a, b = nodes[A.id].averaging, nodes[B.id].averaging
    b._offers.rests = lambda: IDLE
    a.want(1, 0.0)
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
