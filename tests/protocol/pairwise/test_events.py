"""What the events of exchanges say: the partner, and how an exchange ended."""

from __future__ import annotations

from msgspec.structs import replace

from gossipdp.protocol.events import ExchangeEnded, OfferRefused, UpdateRefused
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import End, Ranges, Refuse
from tests.protocol.pairwise.averaging_rig import A, B, network
from tests.protocol.pairwise.exchange_rig import CHUNKS, INITIATOR, RESPONDER, Pair


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
