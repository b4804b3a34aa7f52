"""Rules of a joiner that whole transfers seldom reach, and what the judge of its transfer asks for."""

from dataclasses import replace
from random import Random

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.course.joiner import Joiner
from gossipdp.protocol.events import Notice, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.plausibility import Judge
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.wire.messages import (
    StateChunk,
    StateManifest,
    StateProbe,
    StateRefuse,
    StateRequest,
    StateSample,
)
from tests.protocol.transfer.transfer_rig import CONFIG, SIZE, A, B, C, Taker, carry, givers, new_joiner


def alone() -> tuple[Joiner, Outputs]:
    outputs = Outputs()
    return new_joiner(outputs), outputs


def test_model_that_is_too_large_for_this_host_is_told_and_left() -> None:
    taker, outputs = Taker(), Outputs()
    config = replace(CONFIG, max_parameters=SIZE - 1)
    taker.joiner = new_joiner(outputs, config=config)
    taker.outputs = outputs
    taker.joiner.seek([A], 0.0)
    carry(taker, givers(A))
    assert [notice.code for notice in taker.of(Notice)] == ["GD-502"]
    assert taker.joiner.refusals == {A: Refusal.SIZE} and taker.joiner.source is None and not taker.allocated


def test_state_of_two_sources_is_as_old_as_the_older() -> None:
    taker = Taker()
    taker.joiner.seek([A], 0.0)
    carry(taker, givers(A, clock=100), mangle=lambda said: None if isinstance(said.message, StateChunk) else said)
    taker.joiner.gone(A, 0.0)
    taker.joiner.handle_timer(taker.joiner.timer())
    taker.joiner.seek([B], 1.0)
    carry(taker, givers(B, clock=90), now=1.0)
    assert taker.joiner.done and taker.joiner.manifest.clock == 90


@pytest.mark.parametrize(
    ("voices", "asked"),
    [
        pytest.param({A, B, C}, {B, C}, id="all have a voice"),
        pytest.param({A, B}, {B}, id="one other has a voice"),
        pytest.param({A}, {B, C}, id="the source alone has a voice"),
    ],
)
def test_members_with_a_voice_are_the_witnesses_and_show_their_layout(voices: set[bytes], asked: set[bytes]) -> None:
    taker, sources, said = Taker(voices=lambda peers: [peer for peer in peers if peer in voices]), givers(A), []
    taker.joiner.seek([A], 0.0)
    taker.joiner.seek([A, B, C], 0.0)
    sent, now = taker.outputs.send, 0.0

    def send(to, message, *rest, **options):
        said.append((to, message))
        return sent(to, message, *rest, **options)

    taker.outputs.send = send
    carry(taker, sources)
    while now < 3 * CONFIG.manifest and not taker.joiner.done:
        now = taker.joiner.timer()
        taker.joiner.handle_timer(now)
        carry(taker, sources, now)
    assert {to for to, message in said if isinstance(message, StateProbe)} == asked
    assert {to for to, message in said if isinstance(message, StateRequest)} - {A} == asked
    assert taker.joiner.done


def test_requests_for_chunks_are_numbered() -> None:
    """By the number a joiner learns how long an answer takes."""
    taker, asked = Taker(), []
    taker.joiner.seek([A], 0.0)
    sources = givers(A)

    def note(said):
        asked.append(getattr(said.message, "asking", None))
        return said

    carry(taker, sources, mangle=note)
    numbers = [number for number in asked if number is not None]
    assert taker.joiner.done and numbers == sorted(numbers) and numbers[0] > 0 and len(set(numbers)) > 1


def test_state_is_outdone_only_if_all_candidates_have_shown_older_ones() -> None:
    joiner, _ = alone()
    assert not joiner.outdone([])
    joiner.refusals[A] = Refusal.OLD
    assert joiner.outdone([A]) and not joiner.outdone([A, B])


def test_member_that_was_not_asked_yet_is_asked_at_once_when_it_is_ready() -> None:
    joiner, outputs = alone()
    joiner.seek([A], 0.0)
    joiner.receive(StateRefuse(outputs.messages[-1].message.transfer, Refusal.JOINING.value), [], A, 0.0)
    joiner.found_ready(B, 0.1)
    assert outputs.messages[-1].to == B and isinstance(outputs.messages[-1].message, StateRequest)


SHORT = jobs.RUN - 1
"""Parameters of the last chunk, fewer than a run has."""
SHORT_SIZE = 8192 + SHORT


def comparing() -> tuple[Judge, Outputs]:
    """A judge that compares the last chunk, which A gave, with what B says."""
    outputs = Outputs()
    judge = Judge(outputs, Random(1), patience=10.0)
    manifest = StateManifest(1, 1, SHORT_SIZE, 8192, 100, 10, b"d" * 16, b"s" * 16)
    judge.summon(1, A, manifest, [slice(0, 8192), slice(8192, SHORT_SIZE)], [1], [A, B])
    judge.came(1, 1)
    judge.heard(StateSample(1, 100, 10, 0.1, 0.1), [b"sample"], B)
    assert not judge.settled(0.0)
    return judge, outputs


def test_run_in_a_last_chunk_that_is_shorter_ends_with_the_model() -> None:
    _, outputs = comparing()
    assert list(outputs.jobs) == [jobs.Compare(((0, 8192, SHORT),), SHORT, b"sample", (8192,), (1,))]


def test_malformed_sample_is_told_with_its_witness() -> None:
    judge, outputs = comparing()
    judge.compared(None)
    assert list(outputs.events) == [UpdateRefused(B, "payload")] and judge.settled(0.0)
