"""Causes are values: messages carry their words, and words of other versions are read as they are."""

import pytest

from gossipdp.protocol.causes import Ending, Objection
from gossipdp.protocol.events import OfferRefused
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import End, MomentsRefuse, Refuse, StateRefuse
from tests.protocol.pairwise.averaging_rig import A, B, begin, network, pump

CARRIED = [
    *(Refuse(1, word) for word in Objection),
    *(End(1, True, word) for word in (*Ending, *Objection)),
    *(kind(1, word) for kind in (StateRefuse, MomentsRefuse) for word in Refusal),
]


@pytest.mark.parametrize("message", CARRIED, ids=str)
def test_message_carries_the_word_as_plain_text(message):
    frames = wire.encode(message)
    read, _ = wire.decode(frames)
    assert read == message and type(read.reason) is str and read.reason.encode() in bytes(frames[0])


def test_words_that_other_versions_know_stay():
    assert {*Ending} == {"settled", "unwanted", "lost", "unknown", "round"}
    assert {*Refusal} == {"joining", "gone", "busy", "new", "none", "silent", "old", "settings", "clock", "size"}
    told = "busy done idle schema settings codec apart aside joining leaving"
    assert {*Objection} >= {*told.split()}


def test_offer_refused_with_a_word_of_another_version_is_refused():
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    [offer] = nodes[A.id].post()
    nodes[A.id].hear(B.id, Refuse(offer.message.exchange, "a newer word"))
    assert nodes[A.id].of(OfferRefused) == [OfferRefused(B.id, "a newer word")]


def test_exchange_ended_with_a_word_of_another_version_is_cut():
    nodes = network(A, B)
    exchange = begin(nodes)
    nodes[B.id].hear(A.id, End(exchange, True, "a newer word"))
    pump(nodes)
    assert nodes[B.id].averaging.partner is None
