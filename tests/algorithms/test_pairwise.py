"""`pairwise` against its own mathematics, on the real jobs (algorithms sections 9 and 12; invariants 2, 12 and 14)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.pairwise import NORM_SHARE, PLAUSIBLE
from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault
from simulations.simulator.settings import pairwise
from tests.algorithms.replicas import MIXING, Replica, exchange, opened, replicas
from tests.algorithms.test_pairwise_bound import Trainee

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
    key = jobs.ChunkKey(i.id, next(i.numbers), 0)
    turn = opened(i, j, key, "fp32")
    turn = i.run(jobs.Decode(key=key, buffers=turn.buffers, first=True))
    i.x[:] = i.ledger.a + np.float32(2.0)
    i.outer(1.0, 0.0)
    turn = j.run(jobs.DecodeAndMix(key=key, buffers=turn.buffers, bound=turn.bound, mixing=MIXING))
    assert i.run(jobs.Mix(key=key, buffers=turn.buffers, share=turn.share, mixing=MIXING)).mixed
    assert i.algorithm.moved[0] == pytest.approx(2.0, rel=1e-5)


def test_drop_forgets_open_chunks_and_ignores_unknown_ones():
    i, _ = replicas(2, size=512)
    keys = tuple(jobs.ChunkKey(i.id, 1, chunk) for chunk in range(2))
    for key in keys:
        i.run(jobs.Begin(key=key, coding=jobs.Coding(codec="modulo4", lower=True)))
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
    giver.algorithm.range[:] = joiner.algorithm.range / 4
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


SIZE = 256
KEY = jobs.ChunkKey(b"i" * 32, 1, 0)


class Pair:
    """An initiator with the lower id and a responder, with anchors of one block each."""

    def __init__(self, i: float, j: float) -> None:
        self.i, self.j = pairwise(), pairwise()
        shape = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
        for side, scale in ((self.i, i), (self.j, j)):
            side.allocate(SIZE, SIZE, SIZE)
            side.ledger.a[:] = scale * shape

    def opened(self, codec: str) -> jobs.Turn:
        """Open the chunk, up to the turn that lets the responder mix if no check fails."""
        answer = opened(self.i, self.j, KEY, codec)
        return self.i.run(jobs.Decode(key=KEY, buffers=answer.buffers, first=True))

    def exchange(self, codec: str) -> jobs.Turn:
        turn = self.opened(codec)
        while not (
            turn := self.j.run(jobs.DecodeAndMix(key=KEY, buffers=turn.buffers, bound=np.inf, mixing=MIXING))
        ).mixed:
            turn = self.i.run(jobs.Decode(key=KEY, buffers=turn.buffers, first=False))
        assert self.i.run(jobs.Mix(key=KEY, buffers=turn.buffers, share=turn.share, mixing=MIXING)).mixed
        return turn


@pytest.mark.parametrize("codec", ["modulo2", "modulo4", "modulo8"])
def test_equal_anchors_stay_equal_because_both_sides_round_with_one_stream(codec):
    pair = Pair(1.0, 1.0)
    before = pair.i.ledger.a.copy()
    assert pair.exchange(codec).distance2 == 0.0
    assert (pair.i.ledger.a == before).all() and (pair.j.ledger.a == before).all()


@pytest.mark.parametrize(("moved", "escalated"), [(8.0, 0), (0.0, 1)])
def test_range_told_allows_for_own_steps_since_the_last_exchange(moved, escalated):
    """Without that, each block that an outer step moved far would escalate."""
    pair = Pair(2.0, 1.0)
    for side in (pair.i, pair.j):
        side.range[:] = 0.01
        side.moved[:] = moved
    assert pair.exchange("modulo4").escalated == escalated


@pytest.mark.parametrize("measured", [np.nan, np.inf])
def test_difference_without_a_finite_length_is_refused(measured, monkeypatch):
    pair = Pair(2.0, 1.0)
    turn = pair.opened("fp32")
    monkeypatch.setattr(type(pair.j._open[KEY].side), "norm2", lambda side: measured)
    before = pair.i.ledger.a.copy(), pair.j.ledger.a.copy()
    assert (
        pair.j.run(jobs.DecodeAndMix(key=KEY, buffers=turn.buffers, bound=np.inf, mixing=MIXING)).refused is Fault.NAN
    )
    assert pair.i.run(jobs.Mix(key=KEY, buffers=(), share=1.0, mixing=MIXING)).refused is Fault.NAN
    assert (pair.i.ledger.a == before[0]).all() and (pair.j.ledger.a == before[1]).all()
    assert not pair.i._open and not pair.j._open


USUAL = np.sqrt(2.0)
"""usual distance of trainees after one round, whose step has the norm 1"""


def trained(number, lengths=(1.0,)):
    trainee = Trainee(number)
    for length in lengths:
        trainee.settle()
        trainee.x += np.float32(length) * trainee.progress
        trainee.outer(1.0, 0.0)
        trainee.settle()
    return trainee


def meet(distance, share=1.0, codec="fp32"):
    """Two trainees this far apart exchange in the closing. Returns the turn, both, and how far each has moved."""
    one, two = trained(1), trained(2)
    two.ledger.a[:] = one.ledger.a + np.float32(distance) * one.progress
    before = one.a, two.a
    for each in (one, two):
        each.run(jobs.Widen(share))
    [turn] = exchange(one, two, codec)
    return turn, one, two, [np.linalg.norm(each.a - old) for each, old in zip((one, two), before, strict=True)]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_plausible_difference_is_mixed_whole_and_a_longer_one_not_at_all(share):
    bound = share * PLAUSIBLE * USUAL
    turn, one, two, _ = meet(0.99 * bound, share)
    assert turn.share == 1.0 and np.linalg.norm(one.a - two.a) < 1e-5 * bound
    turn, _, _, moved = meet(1.01 * bound, share)
    assert turn.share == 0.0 and moved == [0.0, 0.0]


def ended(lengths):
    """Two trainees at the end of runs with rounds of these lengths, in opposite directions."""
    one, two = trained(1, lengths), trained(2, lengths)
    two.ledger.a[:] -= np.float32(2.0 * sum(lengths) * 0.9) * two.progress
    return one, two


@pytest.mark.parametrize(
    "lengths",
    [[1.0] * 100, np.linspace(1.0, 1e-3, 30), [*np.linspace(1.0, 1e-3, 30), 1e-6]],
    ids=["long", "decaying", "to_zero"],
)
def test_peers_that_have_mixed_with_nobody_come_together_whatever_their_last_rounds_were(lengths):
    """On a busy machine a run of 60 short rounds had no exchange. Its rate had come to 0, and no model was final."""
    one, two = ended(lengths)
    for each in (one, two):
        each.run(jobs.Widen(1.0))
    [turn] = exchange(one, two)
    assert turn.share == 1.0 and np.linalg.norm(one.a - two.a) < 1e-5 * sum(lengths)


def test_way_of_a_peer_that_exchanges_fades_with_its_rounds():
    one, two = trained(1, [100.0]), trained(2, [100.0])
    two.ledger.a[:] = one.ledger.a
    before = one.algorithm._plausible(0)
    for _ in range(200):
        two.ledger.a[:] = one.ledger.a
        exchange(one, two)
        one.settle()
        one.x += np.float32(1.0) * one.progress
        one.outer(1.0, 0.0)
        one.settle()
    assert one.algorithm._plausible(0) < 0.02 * before


def test_difference_of_the_size_of_roundings_counts_as_none_however_short_the_last_steps_were():
    """Training that has converged: its steps, and so the usual distance, are shorter than roundings of the model."""
    one, two = Replica(1, 256, clip=1.5), Replica(2, 256, clip=1.5)
    for each in (one, two):
        each.ledger.a[:] = 1.0
        each.settle()
        each.x[:] = 1.0
        each.x[0] += np.spacing(np.float32(1.0))
        each.outer(1.0, 0.0)
        each.settle()
        each.run(jobs.Widen(2.0**-10))
    two.ledger.a[::2] += np.spacing(np.float32(1.0))
    [turn] = exchange(one, two)
    assert turn.share == 1.0 and turn.distance2 == 0.0
    two.ledger.a[:] += np.float32(1e-4)
    [turn] = exchange(one, two)
    assert turn.share == 0.0 and turn.distance2 > 0.0, "a longer one counts as ever"


def test_partner_too_far_away_does_not_make_the_next_grid_coarse():
    turn, one, *_ = meet(1e6, codec="modulo16")
    assert turn.share == 0.0 and one.algorithm.range.max() < 1.0


def test_claim_of_a_larger_bound_than_a_peers_own_moves_it_no_further():
    victim, liar = trained(1), trained(2)
    liar.algorithm.clip = np.inf
    victim.run(jobs.Widen(1.0))
    liar.ledger.a[:] = victim.ledger.a + np.float32(1.01 * PLAUSIBLE * USUAL) * victim.progress
    before = victim.a
    [turn] = exchange(liar, victim)
    assert turn.share == 0.0 and (victim.a == before).all()


@pytest.mark.parametrize("initiator", [0, 1])
def test_partner_of_an_earlier_version_mixes_what_its_own_bound_leaves(initiator):
    """It clips where this version mixes whole. Both come nearer, as before."""
    new, old = trained(1), trained(2)
    old.ledger.a[:] = new.ledger.a + np.float32(10.0 * USUAL) * new.progress
    before, bound = new.a, old.algorithm._bound(0)
    new.run(jobs.Widen(1.0))
    [turn] = exchange(*((new, old) if initiator == 0 else (old, new)))
    assert turn.share == pytest.approx(bound / (10.0 * USUAL), rel=1e-3)
    assert np.linalg.norm(new.a - before) == pytest.approx(0.5 * bound, rel=1e-3)


@pytest.mark.parametrize("rests", [(True, True), (True, False), (False, True)])
def test_lookahead_taken_out_is_within_the_predicted_range_also_beside_a_peer_that_keeps_it(rests):
    """A peer of an earlier version keeps it."""
    pair = Replica(1, 256, clip=1.5), Replica(2, 256, clip=1.5)
    random = np.random.default_rng(3)
    for each in pair:
        each.settle()
        each.x += random.standard_normal(256).astype(np.float32)
        each.outer(0.8, 0.8)
        each.settle()
        each.run(jobs.Widen(1.0))
    exchange(*pair, "modulo16")
    for each, rest in zip(pair, rests, strict=True):
        each.algorithm.moved[:], each.algorithm.range[:] = 0.0, 1e-6
        if rest:
            ahead = each.ledger.lookahead[0] * each.v
            point = each.a + ahead
            each.run(jobs.Rest(0))
            np.testing.assert_allclose(each.a, point, atol=1e-6)
            assert each.algorithm.moved[0] == pytest.approx(np.abs(ahead).max(), rel=1e-6)
    mean = (pair[0].a + pair[1].a) / 2.0
    [turn] = exchange(*pair, "modulo16")
    assert turn.share == 1.0
    for each in pair:
        np.testing.assert_allclose(each.a, mean, atol=1e-5)


@pytest.mark.parametrize(("factor", "share"), [(0.99, 1.0), (1.01, 0.0)])
def test_peer_without_own_steps_measures_by_its_model(factor, share):
    copy, other = Replica(1, 256, clip=1.5), Replica(2, 256)
    copy.ledger.a[:] = 1.0
    bound = PLAUSIBLE * NORM_SHARE * np.linalg.norm(copy.a)
    other.ledger.a[:] = 1.0 + factor * bound / 16.0
    copy.run(jobs.Widen(1.0))
    [turn] = exchange(other, copy)
    assert turn.share == share


def test_grid_stays_fine_after_many_rounds_whose_movements_cancel():
    """A grid as coarse as the whole way left more than a thousandth of the distance, and a third exchange was due."""
    one, two = Replica(1, 256), Replica(2, 256)
    random = np.random.default_rng(3)
    for _ in range(100):
        for each in (one, two):
            each.settle()
            each.x += random.standard_normal(256).astype(np.float32)
            each.outer(1.0, 0.0)
            each.settle()
    apart = np.linalg.norm(one.a - two.a)
    for each in (one, two):
        each.run(jobs.Widen(1.0))
    exchange(one, two, "modulo16")
    assert np.linalg.norm(one.a - two.a) < 2e-4 * apart
