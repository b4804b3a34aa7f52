"""State for joiners (algorithms section 8): frozen, hashed, signed, and fetched from any member that has it."""

import dataclasses

import pytest
from msgspec.structs import replace

from gossipdp.protocol.course.joiner import MOST_PATIENCE, MOST_ROUNDS
from gossipdp.protocol.events import Notice, TransferProgress
from gossipdp.protocol.membership.progress import LARGEST
from gossipdp.protocol.model import Model
from gossipdp.protocol.transfer.source import Source
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import StateChunk, StateManifest, StateRefuse, StateRequest, StateWait
from tests.protocol.transfer.transfer_rig import (
    CHUNKS,
    CONFIG,
    LARGER,
    OTHER,
    SCHEMA,
    SIZE,
    A,
    B,
    C,
    Giver,
    Taker,
    carry,
    close_to,
    givers,
    signature,
)


def test_joiner_fetches_every_chunk_from_one_source():
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources)
    assert taker.joiner.done and taker.joiner.manifest.clock == 100 and taker.joiner.schema == SCHEMA
    assert close_to(taker.algorithm.ledger.a, sources[A].a).all()
    assert [event.chunks for event in taker.of(TransferProgress)] == list(range(1, CHUNKS + 1))
    assert taker.allocated == 1 and taker.joiner.timer() is None


def test_source_that_is_set_aside_is_not_asked_until_it_is_back():
    shuns = lambda peer, now: peer == A and now < 60.0  # noqa: E731
    taker = Taker(shuns=shuns)
    taker.joiner.seek([A], 0.0)
    assert not taker.outputs.messages and taker.joiner.source is None
    taker.joiner.found_ready(A, 1.0)
    assert taker.joiner.source is None
    taker.joiner.seek([A, B], 2.0)
    assert [envelope.to for envelope in taker.outputs.messages] == [B]
    late = Taker(shuns=shuns)
    late.joiner.seek([A], 60.0)
    assert late.joiner.source == A


def test_seek_asks_one_source_and_not_again_while_it_works():
    taker = Taker()
    for _ in range(3):
        taker.joiner.seek([A, B], 0.0)
    assert [type(envelope.message) for envelope in taker.outputs.messages] == [StateRequest]


@pytest.mark.parametrize("given", range(CHUNKS))
def test_source_dies_half_way_and_the_rest_comes_from_another(given):
    taker, sources = Taker(), givers(A, B)
    sources[B].model = dataclasses.replace(sources[B].model, clock=160)
    taker.joiner.seek([A], 0.0)
    passed = []

    def mangle(envelope):
        if isinstance(envelope.message, StateChunk):
            passed.append(envelope.message.chunk)
            return envelope if len(passed) <= given else None
        return envelope

    carry(taker, sources, mangle=mangle)
    kept = set(range(CHUNKS)) - taker.joiner._missing
    assert len(kept) == given
    first = sources.pop(A)
    taker.joiner.gone(A, 1.0)
    taker.joiner.handle_timer(taker.joiner.timer())
    taker.joiner.seek([B], 2.0)
    carry(taker, sources, 2.0)
    assert taker.joiner.done and taker.allocated == 1
    assert taker.joiner.manifest.clock == 100, "a patchwork is as old as its oldest part"
    assert taker.joiner.begun == 160, "the clock of the last source counts"
    for chunk in range(CHUNKS):
        span = taker.algorithm.ledger.span(chunk)
        source = first if chunk in kept else sources[B]
        assert close_to(taker.algorithm.ledger.a[span], source.a[span]).all()


def test_silent_source_is_left_for_another():
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=lambda envelope: None)
    asked = [taker.joiner.timer()]
    while asked[-1] < 10.0:
        taker.joiner.handle_timer(asked[-1])
        assert [envelope.message for envelope in taker.outputs.messages] == [StateRequest(taker.joiner._transfer)]
        taker.outputs.messages.clear()
        asked.append(taker.joiner.timer())
    assert asked == [2.0, 4.0, 6.0, 8.0, 10.0]
    taker.joiner.handle_timer(10.0)
    assert taker.joiner.source is None and taker.joiner.refusals == {A: "silent"}
    taker.joiner.handle_timer(taker.joiner.timer())
    taker.joiner.seek([A, B], 11.0)
    assert taker.joiner.source == B


def test_source_that_goes_on_freezing_is_waited_for_and_one_that_does_not_is_left():
    taker, giver = Taker(), Giver(A, schema=LARGER)
    taker.joiner.seek([A], 0.0)
    told, now = [], 0.0
    while taker.joiner.source is not None:
        taker.outputs.messages.clear()
        giver.source.receive(StateRequest(taker.joiner._transfer), b"j" * 32, giver.model, now)
        if now < 20.0:  # a chunk every two seconds, and then no more
            job = giver.outputs.jobs.popleft()
            giver.source.frozen(job, giver.algorithm.run(job), giver.model)
        for envelope in giver.outputs.messages:
            told.append(envelope.message)
            taker.joiner.receive(envelope.message, [], A, now)
        giver.outputs.messages.clear()
        now = taker.joiner.timer()
        taker.joiner.handle_timer(now)
    assert [message.chunks for message in told] == [*range(1, 10), *[10] * 5] and now == 30.0


def test_freezing_source_is_left_after_a_time():
    taker = Taker()
    taker.joiner.seek([A], 0.0)
    now, chunks = 0.0, 0
    while taker.joiner.source is not None and now < 1000.0:
        chunks += 1
        taker.joiner.receive(StateWait(taker.joiner._transfer, chunks), [], A, now)
        now = taker.joiner.timer()
        taker.joiner.handle_timer(now)
    assert now == pytest.approx((MOST_PATIENCE + 1) * CONFIG.manifest, rel=0.05)


def test_source_that_falls_silent_between_chunks_is_left_for_another():
    taker, sources, given = Taker(), givers(A, B), []

    def mangle(envelope):
        if isinstance(envelope.message, StateChunk):
            given.append(envelope)
            return envelope if len(given) == 1 else None
        return envelope

    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=mangle)
    times = []
    while taker.joiner.source == A and len(times) < 20:
        times.append(taker.joiner.timer())
        taker.joiner.handle_timer(times[-1])
        carry(taker, sources, times[-1], mangle=mangle)
    assert times == sorted(set(times)) and times[-1] == CONFIG.silence
    assert taker.joiner.source is None and taker.joiner.refusals == {A: "silent"}


def test_lost_chunks_are_requested_again():
    taker, sources, lost = Taker(), givers(A), []

    def mangle(envelope):
        if isinstance(envelope.message, StateChunk) and len(lost) < 2:
            lost.append(envelope)
            return None
        return envelope

    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=mangle)
    while not taker.joiner.done:
        now = taker.joiner.timer()
        assert now < 8.0
        taker.joiner.handle_timer(now)
        carry(taker, sources, now, mangle=mangle)
    assert len(lost) == 2


def test_doubled_chunks_are_taken_and_counted_once_and_later_ones_not_at_all():
    taker, sources, said = Taker(), givers(A), []
    taker.joiner.seek([A], 0.0)

    def mangle(envelope):
        message, buffers = wire.decode(envelope.frames)
        said.append((message, list(buffers)))
        taker.came += [0.0] * taker.joiner.receive(message, list(buffers), A, 0.0)
        return envelope

    carry(taker, sources, mangle=mangle)
    assert taker.joiner.done and len(taker.of(TransferProgress)) == CHUNKS
    for message, buffers in said:
        assert not taker.joiner.receive(message, buffers, A, 1.0)
    assert taker.came == [0.0] * CHUNKS


@pytest.mark.parametrize("damage", ["flip", "short", "long", "nan"])
def test_damaged_chunk_is_refused_and_the_source_left(damage):
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)

    def mangle(envelope):
        if not isinstance(envelope.message, StateChunk) or envelope.message.chunk != 1:
            return envelope
        payload = bytearray(envelope.frames[1])
        if damage == "flip":
            payload[5] ^= 1
        elif damage == "short":
            del payload[-2:]
        elif damage == "long":
            payload += b"\0\0"
        else:
            payload[:2] = b"\xff\x7f"
        return envelope._replace(frames=[envelope.frames[0], payload])

    carry(taker, sources, mangle=mangle)
    assert taker.refused == [(A, "hash")] and taker.joiner.source is None and not taker.joiner.done
    assert (taker.algorithm.ledger.a[taker.algorithm.ledger.span(1)] == 0.0).all()


def test_damaged_chunk_of_a_source_already_left_does_not_blame_the_next():
    taker, sources = Taker(), givers(A, B)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=lambda envelope: None if isinstance(envelope.message, StateChunk) else envelope)
    wrong = StateChunk(taker.joiner._transfer, taker.joiner._snapshot, 0)
    taker.joiner.receive(wrong, [b"xx"], A, 0.0)
    late = list(taker.outputs.jobs)
    taker.outputs.jobs.clear()
    taker.joiner.gone(A, 0.5)
    taker.joiner.handle_timer(1.0)
    taker.joiner.seek([B], 1.0)
    carry(taker, sources, 1.0, mangle=lambda envelope: None if isinstance(envelope.message, StateChunk) else envelope)
    taker.outputs.jobs.extend(late)
    taker.work(1.0)
    assert taker.refused == [(A, "hash")] and taker.joiner.source == B
    taker.joiner.handle_timer(3.0)
    carry(taker, sources, 3.0)
    assert taker.joiner.done


def forged(field, value):
    def mangle(envelope):
        if not isinstance(envelope.message, StateManifest):
            return envelope
        message = replace(envelope.message, **{field: value})
        return envelope._replace(frames=wire.encode(message, envelope.frames[1:]))

    return mangle


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clock", 10**9),
        ("rounds", 7),
        ("parameters", SIZE + 1),
        ("chunk_parameters", 4096),
        ("schema", b"x" * 16),
        ("snapshot", 77),
    ],
)
def test_forged_manifest_is_refused(field, value):
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=forged(field, value))
    assert taker.refused == [(A, "manifest")] and taker.allocated == 0 and taker.joiner.source is None


@pytest.mark.parametrize("frame", [1, 2, 3])
def test_manifest_with_a_forged_buffer_is_refused(frame):
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)

    def mangle(envelope):
        if isinstance(envelope.message, StateManifest):
            frames = [bytearray(part) for part in envelope.frames]
            frames[frame][-1] ^= 1
            return envelope._replace(frames=frames)
        return envelope

    carry(taker, sources, mangle=mangle)
    assert [peer for peer, _ in taker.refused] == [A] and taker.allocated == 0


def test_manifest_signed_by_another_is_refused():
    taker, sources = Taker(), givers(A)
    sources[A].source = Source(CONFIG, sources[A].outputs, lambda data: signature(B, data), incarnation=1)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources)
    assert taker.refused == [(A, "manifest")]


def without_chunks(envelope):
    return None if isinstance(envelope.message, StateChunk) else envelope


def leave(taker, source, now):
    taker.joiner.gone(source, now)
    taker.joiner.handle_timer(taker.joiner.timer())


def test_layout_goes_with_the_source_that_alone_has_shown_it():
    taker, sources = Taker(), {A: Giver(A, schema=OTHER), B: Giver(B)}
    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=without_chunks)
    assert taker.joiner.schema == OTHER
    leave(taker, A, 1.0)
    taker.joiner.seek([B], 2.0)
    carry(taker, sources, 2.0)
    assert taker.joiner.done and taker.joiner.schema == SCHEMA and taker.allocated == 2 and not taker.refused
    assert close_to(taker.algorithm.ledger.a, sources[B].a).all()


def test_source_with_another_layout_than_two_members_have_shown_is_refused():
    taker, sources = Taker(), {A: Giver(A), B: Giver(B), C: Giver(C, schema=OTHER)}
    for source in (A, B):
        taker.joiner.seek([source], 0.0)
        carry(taker, sources, mangle=without_chunks)
        leave(taker, source, 1.0)
    taker.joiner.seek([C], 2.0)
    carry(taker, sources, 2.0)
    assert taker.refused == [(C, "schema")] and taker.joiner.schema == SCHEMA and taker.allocated == 1


@pytest.mark.parametrize("liar", [A, B, C])
@pytest.mark.parametrize("seed", range(4))
def test_layout_that_one_member_of_three_shows_is_never_taken(liar, seed):
    """Whichever member is asked first, and although all chunks are here before another member has said its layout."""
    taker, members = Taker(seed=seed), (A, B, C)
    sources = {peer: Giver(peer, schema=OTHER if peer == liar else SCHEMA) for peer in members}
    now = 0.0
    while not taker.joiner.done:
        assert now < 60.0
        taker.joiner.seek(list(members), now)
        carry(taker, sources, now)
        if not taker.joiner.done:
            now = max(now, taker.joiner.timer() or now)
            taker.joiner.handle_timer(now)
    assert taker.joiner.schema == SCHEMA and taker.joiner.giver != liar
    assert close_to(taker.algorithm.ledger.a, sources[taker.joiner.giver].a).all()


@pytest.mark.parametrize("answer", ["none", "refusal", "gone"])
def test_member_that_shows_no_layout_is_waited_for_as_long_as_a_source(answer):
    taker, sources = Taker(), {A: Giver(A), B: Giver(B, incarnation=2)}

    def mangle(envelope):
        """B's manifest is lost. Its snapshot has a number of its own."""
        lost = isinstance(envelope.message, StateManifest) and envelope.message.snapshot >> 32 == 2
        return None if lost else envelope

    taker.joiner.seek([A], 0.0)
    taker.joiner.seek([A, B], 0.0)
    carry(taker, sources, mangle=mangle)
    assert taker.joiner.source is None and not taker.joiner.done
    if answer == "refusal":
        taker.joiner.receive(StateRefuse(taker.joiner._layouts._transfer, "joining"), [], B, 1.0)
    elif answer == "gone":
        taker.joiner.gone(B, 1.0)
    while not taker.joiner.done:
        now = taker.joiner.timer()
        assert answer == "none" and now <= CONFIG.manifest
        taker.joiner.handle_timer(now)
    assert taker.joiner.schema == SCHEMA


def test_other_settings_are_noticed_and_the_source_left():
    taker, sources = Taker(), givers(A)
    sources[A].model = Model(
        schema=SCHEMA, schema_bytes=SCHEMA.to_bytes(), settings=b"other settings..", clock=1, rounds=1
    )
    taker.joiner.seek([A], 0.0)
    carry(taker, sources)
    assert (
        [event.code for event in taker.of(Notice)] == ["GD-303"] and taker.joiner.source is None and not taker.refused
    )


@pytest.mark.parametrize(("clock", "rounds"), [(LARGEST + 1, 7), ((1 << 63) - 1, 7), (70, MOST_ROUNDS + 1)])
def test_state_with_an_impossible_clock_or_rounds_is_not_taken(clock, rounds):
    taker, sources = Taker(), givers(A)
    sources[A].model = dataclasses.replace(sources[A].model, clock=clock, rounds=rounds)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources)
    assert taker.joiner.refusals == {A: "clock"} and taker.allocated == 0
    assert not taker.refused, "it may have it from another"


def test_source_that_was_started_again_is_no_liar():
    """The manifest is of one life. The requests for chunks reach the next one, which has another state."""
    taker, sources = Taker(), givers(A)
    taker.joiner.seek([A], 0.0)
    carry(taker, sources, mangle=lambda envelope: None if isinstance(envelope.message, StateChunk) else envelope)
    again = Giver(A, incarnation=2)
    again.a += 1.0
    again.source.receive(StateRequest(1), B, again.model, 1.0)
    again.work()
    again.outputs.messages.clear()
    taker.joiner.handle_timer(2.0)
    carry(taker, {A: again}, 2.0)
    assert not taker.refused and taker.joiner.refusals == {A: "gone"}


def test_joiner_refused_by_all_asks_all_again_later():
    taker = Taker()
    now = 0.0
    for _ in range(4):
        taker.joiner.seek([A, B], now)
        source = taker.joiner.source
        taker.joiner.receive(StateRefuse(taker.joiner._transfer, "joining"), [], source, now)
        now = taker.joiner.timer()
        taker.joiner.handle_timer(now)
    requests = [envelope.to for envelope in taker.outputs.messages]
    assert len(requests) == 4 and set(requests[:2]) == set(requests[2:]) == {A, B} and now >= 0.8


def test_member_that_offers_an_exchange_is_asked_at_once_unless_its_state_was_denied():
    """T1 seed 412: two joiners asked each other, with pauses of 6 s, while a third peer had restored the model."""
    taker = Taker()
    for attempt in range(4):
        taker.joiner.handle_timer(60.0 * attempt)
        taker.joiner.seek([A], 60.0 * attempt)
        refusal = StateRefuse(taker.joiner._transfer, "joining")
        taker.joiner.receive(refusal, [], A, 60.0 * attempt)
    taker.outputs.messages.clear()
    assert taker.joiner.source is None and taker.joiner.timer() > 181.0
    taker.joiner.refusals[B] = "implausible"
    taker.joiner.found_ready(B, 181.0)
    assert taker.joiner.source is None and not taker.outputs.messages
    taker.joiner.found_ready(A, 181.0)
    assert taker.joiner.source == A
    assert [type(envelope.message) for envelope in taker.outputs.messages] == [StateRequest]


def test_messages_of_other_members_and_of_earlier_transfers_are_ignored():
    taker = Taker()
    taker.joiner.seek([A], 0.0)
    taker.joiner.receive(StateRefuse(taker.joiner._transfer, "joining"), [], B, 0.0)
    taker.joiner.receive(StateRefuse(taker.joiner._transfer - 1, "joining"), [], A, 0.0)
    assert taker.joiner.source == A


# -- the source ----------------------------------------------------------------------------------------------------
