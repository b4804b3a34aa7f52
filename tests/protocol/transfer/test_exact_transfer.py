"""A state that all peers share is fetched exactly: of one moment, and signed with what it contains."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.events import Notice, TransferProgress
from gossipdp.protocol.schema import MOST_EXACT, chunk_parameters
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Source
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import StateChunk, StateManifest, StateRequest
from tests.protocol.transfer.transfer_rig import CHUNKS, CONFIG, SCHEMA, SETTINGS, A, B, Giver, Taker, carry, signature

C = b"c" * 32
EXACT = dataclasses.replace(CONFIG, exact=True)


class Shared:
    """The shared state, as the source sees it."""

    def __init__(self, inside):
        self.inside, self.turns = inside, Exclusive()

    def freeze(self, begin):
        self.turns.ask(begin)

    def frozen(self):
        self.turns.over()

    def summary(self):
        return self.inside


class ExactGiver(Giver):
    def __init__(self, peer, inside=b"inside"):
        super().__init__(peer)
        self.algorithm = Epidemic()
        self.algorithm.allocate(SCHEMA.size, SCHEMA.trainable, 8192)
        self.a = self.algorithm.ledger.a
        self.a[:] = np.random.default_rng(7).standard_normal(SCHEMA.size)
        self.shared = Shared(inside)
        self.source = Source(EXACT, self.outputs, lambda data: signature(peer, data), self.shared, incarnation=1)


class ExactTaker(Taker):
    def __init__(self):
        super().__init__()
        self.algorithm = Epidemic()
        self.joiner = Joiner(
            EXACT,
            self.outputs,
            lambda peer, data, sign: sign == signature(peer, data),
            self.joiner._random,
            settings=SETTINGS,
        )

    def seek(self, *peers, now=0.0):
        self.joiner.seek(peers, now)


def same_bits(taker, giver):
    return all(taker.algorithm.ledger.digest(chunk) == giver.algorithm.ledger.digest(chunk) for chunk in range(CHUNKS))


def test_fetched_state_is_the_giver_s_bit_for_bit_and_says_what_it_contains():
    giver, taker = ExactGiver(A), ExactTaker()
    taker.seek(A)
    carry(taker, {A: giver})
    assert taker.joiner.done and taker.joiner.summary == b"inside" and not taker.refused
    assert same_bits(taker, giver) and giver.shared.turns.idle


def test_freezing_waits_for_its_turn_and_keeps_it_to_the_last_chunk():
    giver = ExactGiver(A)
    giver.shared.turns.ask(lambda: True)
    giver.source.receive(StateRequest(1), b"j" * 32, giver.model, 0.0)
    assert not giver.outputs.jobs, "something is being done to the state"
    giver.shared.inside = b"more by now"
    giver.shared.turns.over()
    begun = []
    giver.shared.turns.ask(lambda: begun.append(1) or True)
    for chunk in range(CHUNKS):
        assert not begun
        job = giver.outputs.jobs.popleft()
        assert job == jobs.Freeze(chunk)
        giver.source.frozen(job, giver.algorithm.run(job), giver.model)
    assert begun
    [manifest] = [each for each in giver.outputs.messages if isinstance(each.message, StateManifest)]
    assert bytes(manifest.frames[4]) == b"more by now"


@pytest.mark.parametrize("late", [False, True])
def test_dropped_snapshot_frees_the_state(late):
    giver = ExactGiver(A)
    if not late:
        giver.shared.turns.ask(lambda: True)
    giver.source.receive(StateRequest(1), b"j" * 32, giver.model, 0.0)
    giver.source.forget()
    if late:
        giver.work()
    else:
        giver.shared.turns.over()
    assert giver.shared.turns.idle and not giver.outputs.jobs and not giver.outputs.messages


def test_new_snapshot_does_not_take_chunks_that_the_dropped_one_froze():
    giver = ExactGiver(A)
    giver.source.receive(StateRequest(1), b"j" * 32, giver.model, 0.0)
    [stale] = giver.outputs.jobs
    giver.outputs.jobs.clear()
    giver.source.forget()
    giver.source.receive(StateRequest(2), b"k" * 32, giver.model, 0.0)
    assert not giver.outputs.jobs, "the state is still the first one's"
    giver.source.frozen(stale, giver.algorithm.run(stale), giver.model)
    assert giver.work() == CHUNKS and giver.shared.turns.idle


def test_chunks_that_differ_in_another_source_s_state_are_fetched_again():
    first, second, taker = ExactGiver(A), ExactGiver(B, b"and more"), ExactTaker()
    second.a[8192 * 2 + 5] += 1.0
    taker.seek(A)
    given = []

    def three(envelope):
        given.append(isinstance(envelope.message, StateChunk))
        return envelope if sum(given) <= 3 else None

    carry(taker, {A: first}, mangle=three)
    assert not taker.joiner.done
    taker.joiner.gone(A, 1.0)
    taker.joiner.handle_timer(1e3)
    taker.seek(B, now=1e3)
    before = len(taker.of(TransferProgress))
    carry(taker, {B: second}, now=1e3)
    assert taker.joiner.done and taker.joiner.summary == b"and more"
    assert same_bits(taker, second)
    # Chunks 0 to 2 had come from the first; of these the third is another by now.
    assert before == 3 and len(taker.of(TransferProgress)) - before == CHUNKS - 2


@pytest.mark.parametrize("mangled", [b"", b"something else"])
def test_summary_of_the_state_is_signed(mangled):
    giver, taker = ExactGiver(A), ExactTaker()
    taker.seek(A)

    def mangle(envelope):
        if isinstance(envelope.message, StateManifest):
            frames = [*envelope.frames[:4], mangled] if mangled else envelope.frames[:4]
            return envelope._replace(frames=frames)
        return envelope

    carry(taker, {A: giver}, mangle=mangle)
    assert (A, "manifest") in taker.refused and not taker.joiner.busy


def test_source_of_another_algorithm_has_other_settings_and_is_no_liar():
    giver, taker = Giver(A), ExactTaker()
    giver.model = dataclasses.replace(giver.model, settings=b"other settings..")
    taker.seek(A)
    carry(taker, {A: giver})
    assert [event.code for event in taker.of(Notice)] == ["GD-303"] and not taker.refused


def test_state_that_was_denied_is_fetched_and_judged_anew_though_it_is_the_same():
    giver, witness, taker, said = ExactGiver(A), ExactGiver(B), ExactTaker(), []
    giver.a *= -1.0
    witness.algorithm._longest[:] = 1e-3

    def sampled():
        while witness.outputs.jobs:
            job = witness.outputs.jobs.popleft()
            witness.source.sampled(witness.algorithm.run(job), witness.model)

    witness.work = sampled
    for attempt in range(3):
        now = 1e3 * attempt
        taker.joiner.handle_timer(now)
        taker.seek(A, now=now)
        taker.seek(A, B, now=now)
        carry(taker, {A: giver, B: witness}, now, mangle=lambda envelope: said.append(envelope.message) or envelope)
        assert taker.refused == [(A, "implausible")] * (attempt + 1) and not taker.joiner.done
    assert len([message for message in said if isinstance(message, StateChunk)]) == 3 * CHUNKS


def test_state_of_which_every_chunk_is_here_is_taken_at_once_without_a_request():
    """The third source has each chunk as the first or the second had it."""
    first, second, third, taker = ExactGiver(A), ExactGiver(B), ExactGiver(C), ExactTaker()
    first.a[-1] += 1.0
    second.a[5] += 1.0

    def but_the_last(envelope):
        return None if getattr(envelope.message, "chunk", 0) == CHUNKS - 1 else envelope

    def the_last_alone(envelope):
        if not isinstance(envelope.message, StateChunk):
            return envelope
        payload = second.source._snapshot.chunks[CHUNKS - 1].payload
        return envelope._replace(frames=wire.encode(replace(envelope.message, chunk=CHUNKS - 1), [payload]))

    for giver, mangle, now in ((first, but_the_last, 0.0), (second, the_last_alone, 1e3)):
        taker.seek(giver.id, now=now)
        carry(taker, {giver.id: giver}, now, mangle=mangle)
        taker.joiner.gone(giver.id, now)
        taker.joiner.handle_timer(now + 500.0)
    assert taker.joiner._missing == {0} and not taker.joiner.done
    taker.seek(C, now=2e3)
    taker.seek(B, C, now=2e3)
    carry(taker, {C: third}, 2e3)
    assert taker.joiner.done and same_bits(taker, third) and not taker.refused


def test_exact_state_is_of_now_after_a_transfer_of_any_length():
    """Increments have brought what the transfer missed."""
    giver = ExactGiver(A)
    giver.source.took(60)
    giver.source.receive(StateRequest(7), B, giver.model, 0.0)
    giver.work()
    [manifest] = [each.message for each in giver.outputs.messages if isinstance(each.message, StateManifest)]
    assert manifest.clock == giver.model.clock


def test_chunk_of_an_exact_state_fits_one_message():
    assert chunk_parameters(1 << 30, MOST_EXACT) == 1 << 18
    assert chunk_parameters(1 << 30) == 1 << 20
    assert chunk_parameters(10_000, MOST_EXACT) == chunk_parameters(10_000)


def test_chunk_of_the_former_source_that_is_being_taken_in_is_not_the_next_one_s():
    first, second, taker = ExactGiver(A), ExactGiver(B), ExactTaker()
    second.a[5] += 1.0
    taker.seek(A)
    held, work = [], taker.work

    def slowly(now=0.0):
        """Chunk 0 of the first is taken in when the second's manifest is here."""
        late = [job for job in taker.outputs.jobs if isinstance(job, jobs.Adopt) and not held]
        for job in late[:1]:
            taker.outputs.jobs.remove(job)
            held.append(job)
        work(now)

    taker.work = slowly
    carry(taker, {A: first}, mangle=lambda envelope: None if held else envelope)
    assert [job.chunk for job in held] == [0]
    taker.joiner.gone(A, 1.0)
    taker.joiner.handle_timer(1e3)
    taker.seek(B, now=1e3)
    carry(taker, {B: second}, now=1e3)
    assert not taker.joiner.done, "chunk 0 is still being taken in"
    taker.outputs.jobs.append(held[0])
    carry(taker, {B: second}, now=1e3)
    assert taker.joiner.done and same_bits(taker, second)
