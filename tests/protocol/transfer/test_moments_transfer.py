"""The inner optimizer's moments for joiners: signed, hashed, checked, and fetched from members that give them."""

import hashlib
from random import Random

import numpy as np
import pytest

from gossipdp.codecs import moments as codec
from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.events import MomentsProgress, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.protocol.transfer.moments_fetcher import WITHIN, MomentsFetcher
from gossipdp.protocol.transfer.moments_holder import MomentsSource
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import MOST_STEPS, MomentsAsk, MomentsChunk, MomentsManifest, MomentsRequest
from simulations.simulator.settings import pairwise
from tests.codecs import moments_reference

SIZE = 4 * 8192 + 500
SCHEMA = Schema.of([("w", (SIZE - 300,), "float32", "parameter"), ("b", (300,), "float32", "buffer")])
OTHER = Schema.of([("w", (SIZE - 299,), "float32", "parameter"), ("b", (300,), "float32", "buffer")])
CHUNKS = 5
CONFIG = TransferConfig(manifest=10.0, chunk=2.0, silence=8.0, window=2, keep=60.0)
FIRST = 1 << 32 | 1
A, B, C, JOINER = b"a" * 32, b"b" * 32, b"c" * 32, b"j" * 32


def signature(peer, data):
    return hashlib.blake2b(data, key=peer).digest()


def encoded(seed, schema=SCHEMA, steps=100):
    random = np.random.default_rng(seed)
    chunks = []
    for size in chunk_sizes(schema):
        v = random.standard_normal(size).astype(np.float32) ** 2
        payload = moments_reference.encoded(np.sqrt(v), v)
        chunks.append(jobs.Frozen(payload.data, codec.digest(payload)))
    return Moments(steps, tuple(chunks))


class Giver:
    def __init__(self, peer, moments, schema=SCHEMA, incarnation=1):
        self.id, self.outputs, self.schema = peer, Outputs(), schema
        self.source = MomentsSource(
            self.outputs, lambda data: signature(peer, data), CONFIG.keep, incarnation=incarnation
        )
        if moments is not None:
            self.source.hold(moments, 0.0)


class Taker:
    def __init__(self, *candidates, preferred=A, schema=SCHEMA, now=0.0):
        self.kept = []
        self.outputs, self.algorithm, self.events = Outputs(), pairwise(self.keep), []
        self.fetcher = MomentsFetcher(
            CONFIG,
            self.outputs,
            lambda peer, data, sign: sign == signature(peer, data),
            Random(5),
            schema=schema,
            candidates=candidates,
            preferred=preferred,
            now=now,
        )

    def keep(self, payload):
        self.kept.append(bytes(payload))
        return self.kept[-1]

    def work(self, now):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            self.fetcher.checked(job, self.algorithm.run(job), now)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def carry(taker, *givers, now=0.0, mangle=lambda envelope: envelope):
    """Carry messages until there are none. `mangle` changes or (None) loses messages of the givers."""
    known = {giver.id: giver for giver in givers}
    while taker.outputs.messages or any(giver.outputs.messages for giver in givers):
        while taker.outputs.messages:
            envelope = taker.outputs.messages.popleft()
            if envelope.to in known:
                giver = known[envelope.to]
                message, _ = wire.decode(envelope.frames)
                giver.source.receive(message, JOINER, giver.schema, now)
        for giver in givers:
            while giver.outputs.messages:
                envelope = mangle(giver.outputs.messages.popleft())
                if envelope is not None:
                    message, buffers = wire.decode(envelope.frames)
                    taker.fetcher.receive(message, list(buffers), giver.id, now)
                    taker.work(now)


def payloads(moments):
    return [bytes(chunk.payload) for chunk in moments.chunks]


def test_all_chunks_come_from_the_preferred_source():
    given = encoded(1)
    taker, giver, other = Taker(B, A, C), Giver(A, given), Giver(B, encoded(2))
    carry(taker, giver, other)
    assert taker.fetcher.over and taker.fetcher.moments.steps == 100
    assert payloads(taker.fetcher.moments) == payloads(given)
    assert {id(chunk.payload) for chunk in taker.fetcher.moments.chunks} == set(map(id, taker.kept))
    assert [(event.source, event.chunks, event.of) for event in taker.of(MomentsProgress)] == [
        (A, count, CHUNKS) for count in range(1, CHUNKS + 1)
    ]
    assert taker.fetcher.timer() is None


def test_buffers_have_no_moments():
    assert sum(chunk_sizes(SCHEMA)) == SCHEMA.trainable < SCHEMA.size


@pytest.mark.parametrize("given", range(CHUNKS))
@pytest.mark.parametrize("end", ["it left", "it is silent"])
def test_source_goes_half_way_and_the_rest_comes_from_another(given, end):
    first, second = encoded(1, steps=50), encoded(2, steps=90)
    taker, a, b = Taker(A, B), Giver(A, first), Giver(B, second)
    passed = []

    def mangle(envelope):
        if envelope.to == JOINER and isinstance(envelope.message, MomentsChunk):
            passed.append(envelope.message.chunk)
            return envelope if len(passed) <= given else None
        return envelope

    carry(taker, a, mangle=mangle)
    assert not taker.fetcher.over and len(taker.of(MomentsProgress)) == given
    now = 0.0
    if end == "it left":
        taker.fetcher.gone(A, now)
    while taker.fetcher.source == A:
        now = taker.fetcher.timer()
        assert now < 60.0
        taker.fetcher.handle_timer(now)
        taker.outputs.messages = type(taker.outputs.messages)(
            envelope for envelope in taker.outputs.messages if envelope.to != A
        )
    carry(taker, b, now=now)
    assert taker.fetcher.over and taker.fetcher.moments.steps == 90
    mixed = payloads(taker.fetcher.moments)
    assert sum(mine == theirs for mine, theirs in zip(mixed, payloads(first), strict=True)) == given
    assert sum(mine == theirs for mine, theirs in zip(mixed, payloads(second), strict=True)) == CHUNKS - given


def test_lost_messages_are_asked_for_again():
    taker, giver = Taker(A), Giver(A, encoded(1))
    random = Random(2)
    now = 0.0
    while not taker.fetcher.over:
        carry(taker, giver, now=now, mangle=lambda envelope: envelope if random.random() < 0.6 else None)
        if not taker.fetcher.over:
            now = max(now, taker.fetcher.timer())
            taker.fetcher.handle_timer(now)
            assert now < 300.0
    assert payloads(taker.fetcher.moments) == payloads(encoded(1))


def test_members_without_moments_are_passed_over_and_the_fetcher_gives_up_after_four():
    peers = [bytes([number]) * 32 for number in range(8)]
    taker = Taker(*peers, preferred=peers[0])
    asked = []

    def mangle(envelope):
        asked.append(taker.fetcher.source)
        return envelope

    carry(taker, *(Giver(peer, None) for peer in peers), mangle=mangle)
    assert taker.fetcher.over and taker.fetcher.moments is None and taker.fetcher.timer() is None
    assert asked[0] == peers[0] and len(set(asked)) == len(asked) == 4


def test_fetch_with_nobody_to_ask_is_over_at_once():
    taker = Taker()
    assert taker.fetcher.over and not taker.outputs.messages


def test_silent_members_are_given_up_one_after_the_other():
    taker, now, requests = Taker(A, B), 0.0, 0
    while not taker.fetcher.over:
        now = taker.fetcher.timer()
        taker.fetcher.handle_timer(now)
        requests += sum(isinstance(envelope.message, MomentsRequest) for envelope in taker.outputs.messages)
        taker.outputs.messages.clear()
    assert now == pytest.approx(2 * CONFIG.manifest) and requests > 4


def test_payload_that_differs_from_the_manifest_is_refused_and_the_next_source_asked():
    taker, a, b = Taker(A, B), Giver(A, encoded(1)), Giver(B, encoded(2))

    def mangle(envelope):
        if isinstance(envelope.message, MomentsChunk) and envelope.message.chunk == 2 and not taker.of(UpdateRefused):
            payload = bytearray(envelope.frames[1])
            payload[0] ^= 1
            return envelope._replace(frames=[envelope.frames[0], payload])
        return envelope

    carry(taker, a, b, mangle=mangle)
    assert [(event.peer, event.reason) for event in taker.of(UpdateRefused)] == [(A, "moments")]
    assert taker.fetcher.over and payloads(taker.fetcher.moments)[2] == payloads(encoded(2))[2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("half", [0, 1])
def test_hostile_values_with_a_right_hash_are_refused(value, half):
    given = encoded(1)
    payload = np.frombuffer(given.chunks[4].payload, np.uint8).copy()
    size = chunk_sizes(SCHEMA)[4]
    at = half * len(payload) // 2 + size
    payload[at : at + 4] = np.array([value], "<f4").view(np.uint8)
    hostile = Moments(100, (*given.chunks[:4], jobs.Frozen(payload.data, codec.digest(payload))))
    taker, giver = Taker(A), Giver(A, hostile)
    carry(taker, giver)
    assert taker.fetcher.over and taker.fetcher.moments is None
    assert [event.reason for event in taker.of(UpdateRefused)] == ["moments"]


@pytest.mark.parametrize(
    "wrong", ["steps", "number", "parameters", "chunk_parameters", "hashes", "signature", "fewer hashes"]
)
def test_changed_manifest_is_refused(wrong):
    taker, giver = Taker(A), Giver(A, encoded(1))

    def mangle(envelope):
        if not isinstance(envelope.message, MomentsManifest):
            return envelope
        message, buffers = wire.decode(envelope.frames)
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        hashes, sign = (bytearray(buffer) for buffer in buffers)
        if wrong == "hashes":
            hashes[3] ^= 1
        elif wrong == "signature":
            sign[3] ^= 1
        elif wrong == "fewer hashes":
            hashes = hashes[:-16]
        else:
            fields[wrong] += 1
        return envelope._replace(frames=wire.encode(MomentsManifest(**fields), [hashes, sign]))

    carry(taker, giver, mangle=mangle)
    assert taker.fetcher.over and taker.fetcher.moments is None
    assert [event.reason for event in taker.of(UpdateRefused)] == ["manifest of moments"]


def test_moments_of_another_model_are_refused():
    taker, giver = Taker(A), Giver(A, encoded(1, OTHER), OTHER)
    carry(taker, giver)
    assert taker.fetcher.over and taker.fetcher.moments is None
    assert [event.reason for event in taker.of(UpdateRefused)] == ["schema"], "either may have the wrong one"


def test_source_of_moments_that_was_started_again_is_no_liar():
    taker, giver, again = Taker(A), Giver(A, encoded(1)), Giver(A, encoded(2), incarnation=2)
    carry(taker, giver, mangle=lambda envelope: None if isinstance(envelope.message, MomentsChunk) else envelope)
    taker.fetcher.handle_timer(taker.fetcher.timer())
    carry(taker, again, now=2.0)
    assert taker.fetcher.over and not taker.of(UpdateRefused)


def test_newer_moments_do_not_disturb_a_fetch_of_the_earlier_ones():
    taker, giver = Taker(A), Giver(A, encoded(1))

    def mangle(envelope):
        if isinstance(envelope.message, MomentsChunk) and envelope.message.chunk == 1:
            giver.source.hold(encoded(2), 0.0)
        return envelope

    carry(taker, giver, mangle=mangle)
    assert payloads(taker.fetcher.moments) == payloads(encoded(1))


def test_earlier_moments_are_dropped_without_requests_and_never_pile_up():
    giver = Giver(A, encoded(1))
    giver.source.receive(MomentsAsk(1, FIRST, (0,)), JOINER, SCHEMA, 0.5)
    giver.outputs.messages.clear()
    assert giver.source.timer() is None
    giver.source.hold(encoded(2), 1.0)
    assert giver.source.timer() == 0.5 + CONFIG.keep
    giver.source.handle_timer(0.5 + CONFIG.keep)
    assert giver.source.timer() is None
    giver.source.receive(MomentsAsk(1, FIRST, (0,)), JOINER, SCHEMA, 70.0)
    [refusal] = giver.outputs.messages
    assert refusal.message.reason == "gone"
    for number in range(5):
        giver.source.receive(MomentsRequest(1), JOINER, SCHEMA, 80.0)
        giver.source.hold(encoded(number), 80.0)
    given = []
    for number in range(8):
        giver.outputs.messages.clear()
        giver.source.receive(MomentsAsk(1, FIRST + number, (0, 99)), JOINER, SCHEMA, 81.0)
        given += [number for envelope in giver.outputs.messages if isinstance(envelope.message, MomentsChunk)]
    assert given == [4, 5, 6]


def test_earlier_moments_that_were_never_requested_are_dropped_at_once():
    giver = Giver(A, encoded(1))
    giver.source.hold(encoded(2), 1.0)
    assert giver.source.timer() is None
    giver.source.receive(MomentsAsk(1, FIRST, (0,)), JOINER, SCHEMA, 1.5)
    [refusal] = giver.outputs.messages
    assert refusal.message.reason == "gone"


def test_messages_of_other_members_and_of_earlier_transfers_are_ignored():
    taker, giver = Taker(A, B), Giver(A, encoded(1))
    [request] = taker.outputs.messages
    giver.source.receive(request.message, JOINER, SCHEMA, 0.0)
    [said] = giver.outputs.messages
    message, buffers = wire.decode(said.frames)
    taker.fetcher.receive(message, list(buffers), B, 0.0)
    older = {name: getattr(message, name) for name in message.__struct_fields__}
    older["transfer"] -= 1
    taker.fetcher.receive(MomentsManifest(**older), list(buffers), A, 0.0)
    assert len(taker.outputs.messages) == 1
    taker.fetcher.receive(message, list(buffers), A, 0.0)
    assert isinstance(taker.outputs.messages[-1].message, MomentsAsk)


def test_bad_chunk_of_a_source_already_left_does_not_blame_the_next():
    taker, a, b = Taker(A, B), Giver(A, encoded(1)), Giver(B, encoded(2))

    def mangle(envelope):
        if isinstance(envelope.message, MomentsChunk):
            return envelope._replace(frames=[envelope.frames[0], bytes(len(envelope.frames[1]))])
        return envelope

    checking, taker.work = taker.work, lambda now: None
    carry(taker, a, mangle=mangle)
    taker.fetcher.gone(A, 0.0)
    checking(0.0)
    assert [(event.peer, event.reason) for event in taker.of(UpdateRefused)] == [(A, "moments")]
    assert taker.fetcher.source == B
    taker.work = checking
    carry(taker, b)
    assert payloads(taker.fetcher.moments) == payloads(encoded(2))


def test_moments_of_two_sources_have_the_steps_of_the_one_that_made_more():
    """With a smaller count than was made, Adam's bias correction lengthens the next steps."""
    taker, a, b = Taker(A, B), Giver(A, encoded(1, steps=90)), Giver(B, encoded(2, steps=50))
    carry(taker, a, mangle=lambda said: None if getattr(said.message, "chunk", 0) == 4 else said)
    taker.fetcher.gone(A, 0.0)
    carry(taker, b)
    assert taker.fetcher.over and taker.fetcher.moments.steps == 90


def test_steps_are_those_of_members_that_gave_a_chunk():
    """Otherwise a liar's manifest sets the count for chunks of others, and Adam's bias correction with it."""
    taker, liar, b = Taker(A, B), Giver(A, encoded(1, steps=MOST_STEPS)), Giver(B, encoded(2, steps=50))
    carry(taker, liar, mangle=lambda said: None if isinstance(said.message, MomentsChunk) else said)
    taker.fetcher.gone(A, 0.0)
    carry(taker, b)
    assert taker.fetcher.over and taker.fetcher.moments.steps == 50


def test_manifest_of_impossibly_many_steps_does_not_decode():
    """The message to the training process could not hold them, and the process would be cut off."""
    frames = [
        wire.encode(MomentsManifest(1, 1, SIZE, 8192, steps, bytes(16)), [b"h" * 16, b"s" * 64])
        for steps in (MOST_STEPS, 2**63 - 1)
    ]
    wire.decode(frames[0])
    with pytest.raises(RemoteProtocolError):
        wire.decode(frames[1])


def test_sources_that_dribble_are_left_after_a_time():
    """Otherwise one after the other would keep training from a model that is here."""
    now, taker, givers = 0.0, Taker(A, B, C), [Giver(peer, encoded(1)) for peer in (A, B, C)]
    count = 0

    def dribble(said):
        nonlocal count
        count += isinstance(said.message, MomentsChunk)
        return None if isinstance(said.message, MomentsChunk) and count % 4 else said

    while not taker.fetcher.over and now < 10 * WITHIN:
        carry(taker, *givers, now=now, mangle=dribble)
        # Just before it would be given up for silence.
        now = min(taker.fetcher.timer(), now + 7.9)
        taker.fetcher.handle_timer(now)
        if taker.fetcher._taken and len(taker.fetcher._taken) > 2:
            taker.fetcher._taken.popitem()
    assert WITHIN <= now <= WITHIN + 1.0 and taker.fetcher.moments is None and taker.fetcher.timer() is None
