"""Hostile payloads and clipped exchanges of `pairwise`: invariant 11 of algorithms section 9, on the real jobs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault
from tests.algorithms.replicas import MIXING, bounded, exchange, opened, replicas


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 1e6), st.booleans(), st.floats(0.0, 2.0))
def test_hostile_initiator_moves_the_anchor_by_at_most_gamma_tau(codec, size, infinite, told):
    i, j = bounded()
    i.ledger.a[:] = np.random.default_rng(1).standard_normal(256) * size
    i.algorithm.range[:] = size
    before, tau = j.a, j.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(i.numbers), 0)
    turn = opened(i, j, key, codec)
    for first in (True, False, False, False, False):
        turn = i.run(jobs.Decode(key=key, buffers=turn.buffers, first=first))
        turn = j.run(
            jobs.DecodeAndMix(key=key, buffers=turn.buffers, bound=np.inf if infinite else told, mixing=MIXING)
        )
        if turn.mixed:
            break
    assert turn.mixed
    assert np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 + 1e-5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_hostile_responder_moves_the_initiator_by_at_most_gamma_tau(share):
    i, j = bounded()
    j.ledger.a[:] = 100.0
    before, tau = i.a, i.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(i.numbers), 0)
    turn = opened(i, j, key, "fp32")
    i.run(jobs.Decode(key=key, buffers=turn.buffers, first=True))
    turn = i.run(jobs.Mix(key=key, buffers=(), share=share, mixing=MIXING))
    assert turn.refused is (Fault.SHARE if share else None)
    assert np.linalg.norm(i.a - before) <= 0.5 * tau


FRAMES = st.lists(st.binary(max_size=1100), min_size=1, max_size=6)


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=25, deadline=None)
@given(FRAMES, FRAMES)
def test_arbitrary_payloads_are_refused_or_bounded_and_never_raise(codec, ranges, codes):
    i, j = bounded()
    before, tau = j.a, j.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(i.numbers), 0)
    turn = j.run(jobs.Answer(key=key, coding=jobs.Coding(codec=codec, lower=False), ranges=ranges[0]))
    if not turn.refused:
        turn = j.run(jobs.DecodeAndMix(key=key, buffers=tuple(codes), bound=1.0, mixing=MIXING))
    assert turn.refused or turn.mixed or turn.buffers
    assert np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 and np.isfinite(j.a).all()
    before = i.a
    i.run(jobs.Begin(key=key, coding=jobs.Coding(codec=codec, lower=True)))
    turn = i.run(jobs.Decode(key=key, buffers=tuple(ranges + codes), first=True))
    if not turn.refused:
        turn = i.run(jobs.Mix(key=key, buffers=tuple(codes), share=1.0, mixing=MIXING))
    assert np.linalg.norm(i.a - before) <= 0.5 * i.algorithm._bound(0) * 1.01 and np.isfinite(i.a).all()


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
@pytest.mark.parametrize("codec", list(CODECS))
def test_honest_frames_with_poison_in_them_are_refused_or_bounded(codec, byte):
    """All bytes 0xFF are NaN in every floating-point format. All bytes 0x7F are NaN or close to the largest value."""
    for begin in (0.0, 0.5):
        i, j = bounded()
        before, tau = j.a, j.algorithm._bound(0)
        key = jobs.ChunkKey(i.id, next(i.numbers), 0)
        turn = opened(i, j, key, codec)
        for first in (True, False, False, False, False):
            turn = i.run(jobs.Decode(key=key, buffers=turn.buffers, first=first))
            if turn.refused:
                break  # The checks failed, so the partner asked for more bits and sent none itself.
            frames = [bytearray(frame) for frame in turn.buffers]
            for frame in frames:
                frame[int(begin * len(frame)) :] = bytes([byte]) * len(frame[int(begin * len(frame)) :])
            turn = j.run(jobs.DecodeAndMix(key=key, buffers=tuple(frames), bound=np.inf, mixing=MIXING))
            if turn.mixed or turn.refused:
                break
        assert turn.refused or turn.mixed
        assert np.isfinite(j.a).all() and np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 + 1e-5


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16"])
def test_payload_that_is_not_finite_is_refused(codec, poison):
    i, j = bounded()
    key = jobs.ChunkKey(i.id, next(i.numbers), 0)
    kind = {"fp32": "<f4", "fp16": "<f2"}.get(codec)
    values = np.zeros(256, np.float32)
    values[7] = poison
    payload = values.astype(kind).tobytes() if kind else (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    before = j.a
    j.run(jobs.Answer(key=key, coding=jobs.Coding(codec=codec, lower=False), ranges=b""))
    turn = j.run(jobs.DecodeAndMix(key=key, buffers=(payload,), bound=np.inf, mixing=MIXING))
    assert turn.refused is Fault.PAYLOAD and (j.a == before).all() and not j.algorithm._open


def test_clipped_exchange_still_conserves_the_sum():
    i, j = bounded(0.1)
    total = i.a + j.a
    [turn] = exchange(i, j, "modulo8")
    assert 0.0 < turn.share < 1.0
    np.testing.assert_allclose(i.a + j.a, total, atol=1e-6)


@pytest.mark.parametrize("codec", ["fp32", "modulo4"])
@pytest.mark.parametrize("clipped", [False, True])
def test_momenta_are_pulled_by_chunks_that_are_mixed_whole_and_by_no_others(codec, clipped):
    """Both sides know the share, so the sum of v is unchanged for either initiator and either bound."""
    for begins, narrow in itertools.product((0, 1), repeat=2):
        pair = bounded(1e3)
        if clipped:
            pair[narrow].algorithm._step[:] = 0.1
        for replica in pair:
            replica.ledger.v[:] = np.random.default_rng(7 + replica.id[0]).standard_normal(256)
        before = [replica.v for replica in pair]
        [turn] = exchange(pair[begins], pair[1 - begins], codec, pull=0.4)
        assert (turn.share < 1.0) == clipped
        assert [(replica.v == v).all() for replica, v in zip(pair, before, strict=True)] == [clipped] * 2
        np.testing.assert_allclose(pair[0].v + pair[1].v, before[0] + before[1], atol=1e-5)


class _Boaster(Pairwise):
    """Claims the widest range of each block, and that its values are two steps of that grid away."""

    def _codec(self, key, coding):
        super()._codec(key, coding)
        span, blocks = self.ledger.span(key.chunk), self.ledger.blocks[key.chunk]
        values = self.ledger.a[span] + np.float32(2 * CODECS[coding.codec].steps[255])
        claims = np.full(len(blocks), 4e9, np.float32)
        lower, limited = coding.lower, coding.limited
        lie = CODECS[coding.codec].chunk(values, claims, blocks, lower=lower, seed=key.exchange, limited=limited)
        self._open[key].side = lie
        return lie


def boasted_to(limited, rounds=12, size=2000):
    """Two honest replicas that train, each of which also meets a boaster in each round.

    Returns:
        Their distance at each exchange among themselves as measured by them, as it was, and the turns with the boaster.
    """
    one, other, boaster = replicas(3, size, clip=1.5, width=1024)
    boaster.algorithm.__class__ = _Boaster
    other.ledger.a[:] = other.x[:] = one.ledger.a
    for each in (one, other):
        each.algorithm.range[:] = 0.0
    rng = np.random.default_rng(5)
    measured, true, turns = [], [], []
    for _ in range(rounds):
        for each in (one, other):
            each.settle()
            each.x += 1e-3 * rng.standard_normal(size).astype(np.float32)
            each.outer(1.0, 0.0)
        turns += exchange(boaster, one, "modulo3", limited=limited) + exchange(
            boaster, other, "modulo3", limited=limited
        )
        true.append(np.linalg.norm(one.a - other.a))
        mixed = exchange(one, other, "modulo3")
        assert all(turn.seen for turn in mixed)
        measured.append(np.sqrt(sum(turn.distance2 for turn in mixed)))
    return np.array(measured), np.array(true), turns


@pytest.mark.parametrize("limited", [True, False], ids=["both know the limit", "the boaster knows no limit"])
def test_partner_that_claims_the_widest_ranges__honest_ones_stay_near_and_see_their_distance(limited):
    measured, true, turns = boasted_to(limited)
    step = 1e-3 * np.sqrt(2000)
    assert true.max() < 12 * step, "clipping bounds what a partner adds"
    np.testing.assert_allclose(measured, true, rtol=0.5)
    assert all(turn.seen == limited for turn in turns)
