"""`pairwise` against its own mathematics: invariants 2, 12 and 14 of algorithms section 9, on the real jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from simulations.simulator.settings import pairwise
from tests.algorithms.replicas import COUNTER, Replica, exchange, replicas

# -- 2: the mean equations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([2.0, np.inf]),
)
def test_means_of_a_and_v_move_by_outer_steps_alone(codec, pairs, kappa, clip):
    """mean(a)' = mean(a) - alpha (mean D + mu mean v), for any sequence of partners and any codec."""
    alpha, mu, peers = 0.7, 0.8, replicas(4, seed=len(pairs), clip=clip)
    rng = np.random.default_rng(len(pairs))
    for replica in peers:
        replica.ledger.v[:] = rng.standard_normal(600) * 0.1
        replica.x += rng.standard_normal(600).astype(np.float32) * np.float32(0.1)
    mean = lambda vectors: np.mean(list(vectors), axis=0)  # noqa: E731
    a, v = mean(r.a for r in peers), mean(r.v for r in peers)
    d = mean(r.a - r.x for r in peers)
    for replica in peers:
        replica.outer(alpha, mu)
    velocity = mu * v + d
    np.testing.assert_allclose(mean(r.v for r in peers), velocity, atol=2e-6)
    expected = a - alpha * (d + mu * velocity)
    np.testing.assert_allclose(mean(r.a for r in peers), expected, atol=2e-6)
    for first, second in pairs:
        if first != second:
            exchange(peers[first], peers[second], codec, pull=kappa / alpha)
    np.testing.assert_allclose(mean(r.a for r in peers), expected, atol=5e-6)
    np.testing.assert_allclose(mean(r.v for r in peers), velocity, atol=5e-6)


# -- ranges ---------------------------------------------------------------------------------------------------------


def test_ranges_follow_distance_and_own_movement():
    i, j = replicas(2, size=512)
    exchange(i, j)
    assert np.abs(j.a - i.a).max() < 1e-6
    assert (i.algorithm.range >= 0.8).all()
    i.settle()
    i.x[:256] += np.float32(3.0)
    i.outer(1.0, 0.0)
    assert i.algorithm.moved[0] == pytest.approx(3.0, rel=1e-5) and i.algorithm.moved[1] < 1e-6
    exchange(i, j)
    assert (i.algorithm.moved == 0.0).all()


def test_step_taken_while_a_chunk_is_open_is_still_allowed_for_next_time():
    i, j = replicas(2, size=256)
    key = jobs.ChunkKey(i.id, next(COUNTER), 0)
    turn = j.run(jobs.Answer(key, "fp32", False, i.run(jobs.Begin(key, "fp32", True)).buffers[0]))
    turn = i.run(jobs.Decode(key, turn.buffers, True))
    i.x[:] = i.ledger.a + np.float32(2.0)
    i.outer(1.0, 0.0)
    turn = j.run(jobs.DecodeAndMix(key, turn.buffers, turn.bound, 0.5, 0.0))
    assert i.run(jobs.Mix(key, turn.buffers, turn.share, 0.5, 0.0)).mixed
    assert i.algorithm.moved[0] == pytest.approx(2.0, rel=1e-5)


def test_drop_forgets_open_chunks_and_ignores_unknown_ones():
    i, _ = replicas(2, size=512)
    keys = tuple(jobs.ChunkKey(i.id, 1, chunk) for chunk in range(2))
    for key in keys:
        i.run(jobs.Begin(key, "modulo4", True))
    i.run(jobs.Drop((*keys, jobs.ChunkKey(i.id, 9, 9))))
    assert not i.algorithm._open


# -- 12: joins and leaves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5])
def test_join_by_copy_moves_the_mean_by_its_share_and_leave_takes_it_back(count):
    peers, joiner = replicas(count), Replica(99, 600)
    mean = np.mean([r.a for r in peers], axis=0)
    for chunk in range(joiner.ledger.chunks):
        frozen = peers[0].run(jobs.Freeze(chunk))
        assert joiner.run(jobs.Adopt(chunk, frozen.payload, frozen.hash)).finite
    with_joiner = np.mean([r.a for r in [*peers, joiner]], axis=0)
    np.testing.assert_allclose(with_joiner - mean, (peers[0].a - mean) / (count + 1), atol=2.0**-8)
    np.testing.assert_allclose(with_joiner - mean, (joiner.a - mean) / (count + 1), atol=1e-12)
    without = np.mean([r.a for r in [*peers[1:], joiner]], axis=0)
    np.testing.assert_allclose(without - with_joiner, (with_joiner - peers[0].a) / count, atol=1e-12)


def test_joiners_first_ranges_allow_for_the_rounding_of_the_copy():
    giver, joiner = replicas(1)[0], Replica(99, 600)
    for chunk in range(3):
        frozen = giver.run(jobs.Freeze(chunk))
        joiner.run(jobs.Adopt(chunk, frozen.payload, frozen.hash))
    giver.algorithm.range[:] = 0.0
    assert sum(turn.escalated for turn in exchange(joiner, giver, "modulo8")) == 0


# -- 14: what it must equal -------------------------------------------------------------------------------------------


def test_two_peers_every_step_equal_model_averaging():
    """N = 2, gamma 1/2, fp32, mu 0, lr 1, H 1: each step both replicas become the mean of their models."""
    i, j = replicas(2)
    j.ledger.a[:] = i.ledger.a
    j.x[:] = i.ledger.a
    rng = np.random.default_rng(9)
    model = i.a
    for number in range(12):
        gradients = rng.standard_normal((2, 600)) * 0.1 + 0.05 * model
        for replica, gradient in zip((i, j), gradients, strict=True):
            replica.x -= (0.3 * gradient).astype(np.float32)
            replica.outer(1.0, 0.0)
        exchange(*((i, j) if number % 2 else (j, i)))
        for replica in (i, j):
            replica.settle()
        model = model - 0.3 * gradients.mean(axis=0)
        np.testing.assert_allclose(i.x, model, atol=1e-5)
        np.testing.assert_allclose(j.x, model, atol=1e-5)
        np.testing.assert_allclose(i.x, i.ledger.a, atol=1e-6)


def test_unknown_job_raises():
    with pytest.raises(TypeError):
        pairwise().run(jobs.Job())
