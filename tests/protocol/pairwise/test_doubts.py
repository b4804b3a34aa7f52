"""Chunks counted as in doubt when the partner's life is over (algorithms section 3).

The survivor counts those that it cannot know about, and no others. The exhaustive campaign
(simulations.campaigns.exhaustive) found these cases. Each test repeats one with a single machine.
"""

import math

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ChunksInDoubt
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import Deadlines, Terms
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.responder import Responder
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.messages import Accept, Ack, Ask, Data, End, Offer, Ranges, Refuse, Void
from simulations.simulator.settings import averaging_config
from tests.protocol.pairwise.averaging_rig import Members, averages, member

INITIATOR, RESPONDER = b"i" * 32, b"r" * 32
EXCHANGE = 1 << 32 | 7
CHUNKS = 4
SETTINGS = b"s" * 16
MORE, MIXED = jobs.Turn((b"codes",)), jobs.Turn(complete=True, mixed=True)


def terms(partner, window, first=0):
    return Terms(
        partner=partner,
        incarnation=1,
        initiator=INITIATOR,
        exchange=EXCHANGE,
        chunks=CHUNKS,
        size=256,
        first=first,
        coding=jobs.Coding(codec="modulo4", lower=True),
        mixing=jobs.Mixing(weight=0.5, pull=0.0),
        window=window,
    )


class Machine:
    """One side of an exchange. The test completes its jobs and gives their results."""

    def __init__(self):
        self.outputs = Outputs()

    def hear(self, *messages, source=None):
        for message in messages:
            whose = () if source is None else (source,)
            self.machine.receive(message, [b"x"], *whose, 50, 0.0)

    def finish(self, kind, chunk, result):
        [job] = [job for job in self.outputs.jobs if isinstance(job, kind) and job.key.chunk == chunk]
        self.outputs.jobs.remove(job)
        self.machine.job_done(job, result, 0.0)

    def said(self):
        messages = [envelope.message for envelope in self.outputs.messages]
        self.outputs.messages.clear()
        return messages

    def counted(self):
        return sum(event.count for event in self.outputs.events if isinstance(event, ChunksInDoubt))


class Answering(Machine):
    def __init__(self, window, first=0):
        super().__init__()
        accept = Accept(EXCHANGE, "modulo4", 0.5, 0.0, window, 1)
        self.machine = Responder(terms(INITIATOR, window, first), accept, self.outputs, Deadlines(), now=0.0)

    def open(self, chunk):
        self.hear(Ranges(EXCHANGE, chunk, 1))
        self.finish(jobs.Answer, chunk, MORE)

    def mix(self, chunk):
        self.hear(Data(EXCHANGE, chunk, 2, math.inf))
        self.finish(jobs.DecodeAndMix, chunk, MIXED)


class Asking(Machine):
    def __init__(self, window):
        super().__init__()
        self.machine = Initiator(terms(RESPONDER, window), self.outputs, Deadlines(), now=0.0, timing=Timing(1.0))


# -- the initiator -----------------------------------------------------------------------------------------------


def test_void_that_arrives_while_a_turn_is_decoded_is_not_forgotten():
    side = Asking(window=1)
    side.finish(jobs.Begin, 0, MORE)
    side.hear(Data(EXCHANGE, 0, 1, math.inf), Void(EXCHANGE, 0))
    side.said()
    side.finish(jobs.Decode, 0, MORE)
    assert Data not in map(type, side.said()), "nothing more is said of a chunk that will never be mixed"
    side.machine.give_up(1.0)
    assert side.counted() == 0


def test_void_that_arrives_while_ranges_are_made_ends_the_chunk():
    side = Asking(window=1)
    side.hear(Void(EXCHANGE, 0))
    side.finish(jobs.Begin, 0, MORE)
    assert [job.key.chunk for job in side.outputs.jobs if isinstance(job, jobs.Begin)] == [1]


def test_void_of_a_chunk_whose_acknowledgement_is_being_mixed_changes_nothing():
    """A partner that sends both is faulty. The chunk mixed here stays mixed."""
    side = Asking(window=1)
    side.finish(jobs.Begin, 0, MORE)
    side.hear(Data(EXCHANGE, 0, 1, math.inf))
    side.finish(jobs.Decode, 0, MORE)
    side.hear(Ack(EXCHANGE, 0, 3, 1.0), Void(EXCHANGE, 0))
    side.finish(jobs.Mix, 0, MIXED)
    assert side.machine.tally.chunks == 1


# -- the responder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "counted"), [(MIXED, 1), (MORE, 0), (jobs.Turn(refused="nan"), 0)])
def test_chunk_being_decoded_as_the_initiators_life_ends_is_counted_once_it_is_mixed_and_only_then(outcome, counted):
    side = Answering(window=2)
    side.open(0)
    side.hear(Data(EXCHANGE, 0, 2, math.inf))
    side.machine.give_up(1.0)
    assert side.counted() == 0 and not side.machine.settled
    side.finish(jobs.DecodeAndMix, 0, outcome)
    assert side.counted() == counted and side.machine.settled


@pytest.mark.parametrize("window", [1, 2, 3])
def test_unmixed_latest_chunk_takes_one_place_of_the_window(window):
    side = Answering(window)
    for chunk in range(CHUNKS - 1):
        side.open(chunk)
        side.mix(chunk)
    side.open(CHUNKS - 1)
    side.machine.give_up(1.0)
    assert side.counted() == window - 1, "when the last was opened, so many at most were still open before it"


@pytest.mark.parametrize("window", [1, 2])
def test_whole_window_is_in_doubt_when_every_opened_chunk_is_mixed(window):
    side = Answering(window)
    for chunk in range(3):
        side.open(chunk)
        side.mix(chunk)
    side.machine.give_up(1.0)
    assert side.counted() == window


def test_latest_opened_chunk_is_known_by_its_number_not_by_the_arrival_of_its_ranges():
    side = Answering(window=2, first=2)  # opens 2, 3, 0, 1
    side.open(3)
    side.mix(3)
    side.open(0)
    side.mix(0)
    side.open(2)  # overtaken by all
    side.machine.give_up(1.0)
    assert side.counted() == 2


def test_last_chunk_mixed_after_the_initiators_life_ended_is_added_to_the_count():
    side = Answering(window=2)
    for chunk in (0, 1):
        side.open(chunk)
        side.mix(chunk)
    side.open(2)
    side.hear(Data(EXCHANGE, 2, 2, math.inf))
    side.machine.give_up(1.0)
    assert side.counted() == 1
    side.finish(jobs.DecodeAndMix, 2, MIXED)
    assert side.counted() == 2
    side.machine.give_up(2.0)
    assert side.counted() == 2


# -- both, as averaging joins them -------------------------------------------------------------------------------


class Rig(Machine):
    """All of a peer's exchanges, with one partner."""

    def __init__(self, me, partner, incarnation=1):
        super().__init__()
        self.partner = partner * 32
        members = Members(member(me, incarnation), [member(partner)])
        schema = Schema.of([("w", (300,), "float32", "parameter")])
        self.machine = averages(
            members, averaging_config(codec="modulo4", fineness={"modulo4": 4}), self.outputs, settings=SETTINGS
        )
        self.machine.ready(Model(schema=schema, schema_bytes=schema.to_bytes(), settings=SETTINGS, clock=0, rounds=0))


@pytest.mark.parametrize(
    "word", [Ranges(1 << 32 | 7, 0, 1), Data(1 << 32 | 7, 0, 2, math.inf), Ask(1 << 32 | 7, 0, 2)], ids=repr
)
def test_message_to_an_earlier_life_of_the_responder_is_answered_as_unknown(word):
    """A stranger replays a whole exchange.

    The responder cannot know that exchange, so it accepts the offer as a new one. It does not answer "void", because
    its earlier life may have mixed the chunk.
    """
    side = Rig(b"r", b"i", incarnation=2)
    schema = side.machine._model.schema
    side.hear(Offer(word.exchange, schema.digest, SETTINGS, "modulo4", 0.5, 0.0, 0, 8), source=side.partner)
    [accept] = side.said()
    assert isinstance(accept, Accept) and accept.incarnation == 2
    side.hear(word, source=side.partner)
    assert not side.outputs.jobs and side.said() == [End(word.exchange, False, "unknown")]
    assert side.machine.at_rest


def test_late_message_to_an_earlier_life_changes_nothing():
    side = Rig(b"r", b"i", incarnation=2)
    schema, number = side.machine._model.schema, 1 << 32 | 7
    side.hear(Offer(number, schema.digest, SETTINGS, "modulo4", 0.5, 0.0, 0, 8), source=side.partner)
    side.said()
    side.hear(Ranges(number, 0, 2), source=side.partner)
    assert len(side.outputs.jobs) == 1
    side.hear(Ranges(number, 1, 1), source=side.partner)
    assert len(side.outputs.jobs) == 1 and not side.said()


@pytest.mark.parametrize(("outcome", "counted"), [(MIXED, 1), (MORE, 0)])
def test_offer_of_a_restarted_partner_is_refused_while_a_chunk_of_its_old_life_is_mixed(outcome, counted):
    """Accepting the offer would delete the old exchange's log, and with it the result of the job."""
    side = Rig(b"r", b"i")

    def offer(exchange):
        schema = side.machine._model.schema
        side.hear(Offer(exchange, schema.digest, SETTINGS, "modulo4", 0.5, 0.0, 0, 8), source=side.partner)

    old, new = 1 << 32 | 7, 2 << 32 | 1
    offer(old)
    side.hear(Ranges(old, 0, 1), source=side.partner)
    side.finish(jobs.Answer, 0, MORE)
    side.hear(Data(old, 0, 2, math.inf), source=side.partner)
    side.said()
    offer(new)
    assert side.said() == [Refuse(new, "busy")]
    side.finish(jobs.DecodeAndMix, 0, outcome)
    assert side.counted() == counted
    side.said()
    offer(new)
    assert [type(message) for message in side.said()] == [Accept]
    assert side.counted() == counted


# -- words of an earlier life ------------------------------------------------------------------------------------


def test_late_accept_to_a_restarted_initiator_does_not_settle_the_doubts_of_its_old_life():
    """It remembers no offer. Chunks that the responder has mixed may still be lost."""
    asking = Rig(b"i", b"r", incarnation=2)
    asking.hear(Accept(EXCHANGE, "modulo4", 0.5, 0.0, 2), source=asking.partner)
    [end] = asking.said()
    answering = Answering(window=2)
    answering.open(0)
    answering.mix(0)
    answering.hear(end)
    assert answering.machine.ended and not answering.machine.settled
    answering.machine.give_up(1.0)
    assert answering.counted() == 1


def test_accept_of_an_exchange_that_this_life_has_settled_frees_the_responder():
    asking = Rig(b"i", b"r", incarnation=1)
    asking.hear(Accept(EXCHANGE, "modulo4", 0.5, 0.0, 2), source=asking.partner)
    assert asking.said() == [End(EXCHANGE, True, "unwanted")]


def test_accept_by_a_later_life_of_the_partner_ends_the_exchange_with_the_earlier_and_counts():
    """A copy of the offer reached it late. It would wrongly answer questions about chunks that its old life mixed."""
    rig = Rig(b"i", b"r")
    rig.machine.want(1, 0.0)
    [offer] = rig.said()
    rig.hear(Accept(offer.exchange, offer.codec, 0.5, 0.0, 2, 1), source=rig.partner)
    rig.finish(jobs.Begin, 0, MORE)
    rig.hear(Data(offer.exchange, 0, 1, math.inf), source=rig.partner)
    rig.finish(jobs.Decode, 0, MORE)
    rig.said()
    rig.hear(Accept(offer.exchange, offer.codec, 0.5, 0.0, 2, 2), source=rig.partner)
    assert End(offer.exchange, True, "unwanted") in rig.said()
    rig.hear(Void(offer.exchange, 0), source=rig.partner)
    assert rig.counted() == 1
