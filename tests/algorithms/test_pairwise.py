"""`pairwise` against its own mathematics: invariants 2, 6, 11, 12 and 14 of algorithms section 9, on the real jobs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.pairwise import CLIP_FACTOR, MOST_A_ROUND, NORM_SHARE, Pairwise
from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs

WIDTH = 256


class Replica:
    """One peer's vectors, with a training process that takes no time."""

    def __init__(self, number, size, clip=np.inf):
        self.id = bytes([number]) * 32
        self.algorithm = Pairwise(clip=clip)
        self.algorithm.allocate(size, size, WIDTH)
        self.ledger = self.algorithm.ledger
        self.x = np.zeros(size, np.float32)
        self.slots = np.zeros((2, size), np.float32)
        self.ledger.bind(self.x, (self.slots[0], self.slots[1]))
        self.applied = 0

    @property
    def a(self):
        return self.ledger.a.astype(np.float64)

    @property
    def v(self):
        return self.ledger.v.astype(np.float64)

    def run(self, job):
        return self.algorithm.run(job)

    def settle(self):
        """Seal, drain and release: x holds all corrections."""
        sealed = self.run(jobs.Seal())
        for chunk in sealed.chunks:
            span = self.ledger.span(chunk)
            self.x[span] += self.slots[sealed.slot % 2][span]
        if sealed.chunks:
            self.applied = sealed.slot
            self.run(jobs.Release(sealed.slot))

    def outer(self, lr, momentum, part=1.0):
        for chunk in range(self.ledger.chunks):
            self.run(jobs.OuterStep(chunk, lr, momentum, self.applied, part))


COUNTER = itertools.count(1)


def exchange(i, j, codec="fp32", weight=0.5, pull=0.0):
    """Exchange all chunks between two replicas; i is the initiator. Returns the responder's turns."""
    number, mixed = next(COUNTER), []
    for chunk in range(i.ledger.chunks):
        key = jobs.ChunkKey(i.id, number, chunk)
        turn = i.run(jobs.Begin(key, codec, i.id < j.id))
        turn = j.run(jobs.Answer(key, codec, j.id < i.id, turn.buffers[0]))
        first = True
        while True:
            turn = i.run(jobs.Decode(key, turn.buffers, first))
            assert not turn.refused
            first = False
            turn = j.run(jobs.DecodeAndMix(key, turn.buffers, turn.bound, weight, pull))
            assert not turn.refused
            if turn.mixed:
                break
        mixed.append(turn)
        done = i.run(jobs.Mix(key, turn.buffers, turn.share, weight, pull))
        assert done.mixed and not done.refused
    return mixed


def replicas(count, size=600, seed=0, **options):
    rng = np.random.default_rng(seed)
    made = [Replica(number, size, **options) for number in range(1, count + 1)]
    for replica in made:
        replica.ledger.a[:] = rng.standard_normal(size)
        replica.algorithm.range[:] = 1.0
        replica.x[:] = replica.ledger.a
    return made


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


# -- 6: growth of disagreement --------------------------------------------------------------------------------------

PEERS = 16
MIXING = ((PEERS - 2) / (2 * (PEERS - 1))) ** 0.5
"""factor of a random perfect matching on a distance: 0.683; 0.707 for any number of peers"""


class Apart:
    """Replicas with different anchors, and different momenta if `momenta`, in rounds of an outer step and a matching.

    Progress is zero, so D = 0: momentum and mixing alone change the disagreement. Before each round every coordinate
    deals its pairs (a, v) to the peers at random. Each coordinate then has a matching of its own, so one round shows
    the mean over many matchings, and growth of the mean square. One matching for all coordinates would mostly look
    better.
    """

    def __init__(self, mu, kappa, momenta=True, alpha=0.7, size=1024):
        self.mu, self.alpha, self.pull = mu, alpha, kappa / alpha
        self.random, self.peers = np.random.default_rng(3), replicas(PEERS, size=size, seed=5)
        common = self.random.standard_normal(size)
        for replica in self.peers:
            replica.ledger.v[:] = self.random.standard_normal(size) if momenta else common

    @property
    def a(self):
        return np.array([replica.a for replica in self.peers])

    @property
    def v(self):
        return np.array([replica.v for replica in self.peers])

    def round(self):
        order = self.random.permuted(np.tile(np.arange(PEERS)[:, None], self.a.shape[1]), axis=0)
        a, v = np.take_along_axis(self.a, order, 0), np.take_along_axis(self.v, order, 0)
        for replica, own_a, own_v in zip(self.peers, a, v, strict=True):
            replica.ledger.a[:], replica.ledger.v[:] = own_a, own_v
            replica.x[:] = replica.ledger.a
            replica.outer(self.alpha, self.mu)
        for first, second in zip(self.peers[::2], self.peers[1::2], strict=True):
            exchange(first, second, pull=self.pull)
        for replica in self.peers:
            replica.settle()

    def distances(self, rounds):
        """RMS distances of anchors and of momenta to their means, before and after each round."""
        history = [(self.a.std(0), self.v.std(0))]
        for _ in range(rounds):
            self.round()
            history.append((self.a.std(0), self.v.std(0)))
        return np.sqrt(np.square(history).mean(axis=2))

    def growth(self, rounds=24):
        """Growth of the anchors' distance a round, after the influence of the start has decayed."""
        anchors = self.distances(rounds)[:, 0]
        return float((anchors[-1] / anchors[rounds // 2]) ** (1.0 / (rounds - rounds // 2)))


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.8, 0.9])
def test_decoupled_anchors_shrink_by_the_mixing_alone_while_momenta_agree(mu):
    """All anchors move by the same mu v. Mixing leaves 0.683 of a distance, so 0.7 bounds every mu."""
    anchors, momenta = Apart(mu, 0.0, momenta=False).distances(8).T
    factors = anchors[1:] / anchors[:-1]
    np.testing.assert_allclose(factors, MIXING, rtol=0.05)
    assert factors.mean() < 0.7 and momenta.max() < 1e-6


@pytest.mark.parametrize("mu", [0.5, 0.8, 0.9])
def test_decoupled_momenta_forget_their_disagreement_by_mu_a_round_and_no_sooner(mu):
    """At kappa 0 mixing does not touch momenta, so only mu shrinks their disagreement."""
    momenta = Apart(mu, 0.0).distances(8)[:, 1]
    np.testing.assert_allclose(momenta[1:] / momenta[:-1], mu, rtol=1e-5)


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.8, 0.9])
def test_disagreement_shrinks_decoupled_in_the_long_run(mu):
    """The slower of two decays decides: 0.683 for the anchors, and mu for the momenta, which drive the anchors apart.

    The bound is max(0.7, mu), plus 0.02 for sampling noise and for mu 0.8, whose two decays are close.
    """
    assert Apart(mu, 0.0).growth() < max(0.7, mu + 0.02)


@pytest.mark.parametrize("mu", [0.5, 0.8, 0.9])
def test_default_share_of_coupling_shrinks_disagreement_faster_than_momentum_alone_would(mu):
    """At kappa 0.3 mixing also pulls momenta together. Below 1 is stable; the derivation gives 0.693, 0.772 and
    0.811."""
    growth = Apart(mu, 0.3).growth()
    assert growth == pytest.approx(rate(mu, 0.3), rel=0.03) and growth < max(0.72, mu)


def test_coupled_momentum_grows_disagreement():
    """With kappa 1 and mu 0.9 disagreement grows by 1.013 a round with 16 peers (algorithms section 2)."""
    assert 1.0 < Apart(0.9, 1.0, size=4096).growth() < 1.03


def second_moments(mu, kappa, peers, alpha=0.7):
    """The map of one round on E[a^2], E[a v], E[v^2] of the disagreement: an outer step with D = 0, then a matching.

    Deviations of two peers correlate by -1/(N - 1); with d = (a_j - a_i)/2 the mixing is a + d, v - (kappa/alpha) d.
    """
    c, g, k = 1.0 / (peers - 1), kappa / alpha, alpha * mu * mu
    mixing = np.array([[(1 - c) / 2, 0, 0], [0, (1 - c) / 2, 0], [g * g * (1 + c) / 2, g * (1 + c), 1]])
    step = np.array([[1, -2 * k, k * k], [0, mu, -k * mu], [0, 0, mu * mu]])
    return mixing @ step


def rate(mu, kappa, peers=16):
    """Growth of the RMS disagreement a round."""
    return float(np.abs(np.linalg.eigvals(second_moments(mu, kappa, peers))).max()) ** 0.5


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("mu", [0.0, 0.5, 0.8, 0.9])
def test_one_round_maps_disagreement_as_derived(mu, kappa):
    """Coordinates are independent and identically distributed, so one matching shows the expectation."""
    peers, size, alpha = 16, 4096, 0.7
    rng, made = np.random.default_rng(11), replicas(peers, size=size, seed=12)
    a = rng.standard_normal((peers, size))
    v = 0.6 * a + rng.standard_normal((peers, size))
    a, v = a - a.mean(0), v - v.mean(0)
    for replica, own_a, own_v in zip(made, a, v, strict=True):
        replica.ledger.a[:], replica.ledger.v[:] = own_a, own_v
        replica.x[:] = replica.ledger.a
        replica.outer(alpha, mu)
    if mu == 0.0:
        v = np.zeros_like(v)
    for first, second in zip(made[::2], made[1::2], strict=True):
        exchange(first, second, pull=kappa / alpha)
    after_a, after_v = np.array([r.a for r in made]), np.array([r.v for r in made])
    moments = lambda a, v: np.array([(a * a).mean(), (a * v).mean(), (v * v).mean()])  # noqa: E731
    expected = second_moments(mu, kappa, peers, alpha) @ moments(a, v)
    np.testing.assert_allclose(moments(after_a, after_v), expected, atol=0.04)


@pytest.mark.parametrize("kappa", [0.3, 1.0])
@pytest.mark.parametrize("mu", [0.8, 0.9])
def test_growth_of_more_peers_is_a_little_more(mu, kappa):
    """By the derivation, which the replicas above confirm for 16 peers."""
    assert rate(mu, kappa) < rate(mu, kappa, 64) < rate(mu, kappa, 10_000)
    assert (rate(mu, kappa, 10_000) < 0.84) == (kappa == 0.3)


# -- 11: hostile payloads ---------------------------------------------------------------------------------------------


def bounded(scale=1.0):
    """Two replicas with known bounds, from own outer steps of norm about `scale`."""
    i, j = replicas(2, size=256, clip=2.0)
    for replica in (i, j):
        replica.algorithm._step[:] = scale
    return i, j


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 1e6), st.booleans(), st.floats(0.0, 2.0))
def test_hostile_initiator_moves_the_anchor_by_at_most_gamma_tau(codec, size, infinite, told):
    i, j = bounded()
    i.ledger.a[:] = np.random.default_rng(1).standard_normal(256) * size
    i.algorithm.range[:] = size
    before, tau = j.a, j.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(COUNTER), 0)
    turn = j.run(jobs.Answer(key, codec, False, i.run(jobs.Begin(key, codec, True)).buffers[0]))
    for first in (True, False, False, False, False):
        turn = i.run(jobs.Decode(key, turn.buffers, first))
        turn = j.run(jobs.DecodeAndMix(key, turn.buffers, np.inf if infinite else told, 0.5, 0.0))
        if turn.mixed:
            break
    assert turn.mixed
    assert np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 + 1e-5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_hostile_responder_moves_the_initiator_by_at_most_gamma_tau(share):
    i, j = bounded()
    j.ledger.a[:] = 100.0
    before, tau = i.a, i.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(COUNTER), 0)
    turn = j.run(jobs.Answer(key, "fp32", False, i.run(jobs.Begin(key, "fp32", True)).buffers[0]))
    i.run(jobs.Decode(key, turn.buffers, True))
    turn = i.run(jobs.Mix(key, (), share, 0.5, 0.0))
    assert turn.refused == ("share" if share else "")
    assert np.linalg.norm(i.a - before) <= 0.5 * tau


FRAMES = st.lists(st.binary(max_size=1100), min_size=1, max_size=6)


@pytest.mark.parametrize("codec", list(CODECS))
@settings(max_examples=25, deadline=None)
@given(FRAMES, FRAMES)
def test_arbitrary_payloads_are_refused_or_bounded_and_never_raise(codec, ranges, codes):
    i, j = bounded()
    before, tau = j.a, j.algorithm._bound(0)
    key = jobs.ChunkKey(i.id, next(COUNTER), 0)
    turn = j.run(jobs.Answer(key, codec, False, ranges[0]))
    if not turn.refused:
        turn = j.run(jobs.DecodeAndMix(key, tuple(codes), 1.0, 0.5, 0.0))
    assert turn.refused or turn.mixed or turn.buffers
    assert np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 and np.isfinite(j.a).all()
    before = i.a
    i.run(jobs.Begin(key, codec, True))
    turn = i.run(jobs.Decode(key, tuple(ranges + codes), True))
    if not turn.refused:
        turn = i.run(jobs.Mix(key, tuple(codes), 1.0, 0.5, 0.0))
    assert np.linalg.norm(i.a - before) <= 0.5 * i.algorithm._bound(0) * 1.01 and np.isfinite(i.a).all()


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
@pytest.mark.parametrize("codec", list(CODECS))
def test_honest_frames_with_poison_in_them_are_refused_or_bounded(codec, byte):
    """All bytes 0xFF are NaN in every floating-point format. All bytes 0x7F are NaN or close to the largest value."""
    for begin in (0.0, 0.5):
        i, j = bounded()
        before, tau = j.a, j.algorithm._bound(0)
        key = jobs.ChunkKey(i.id, next(COUNTER), 0)
        turn = j.run(jobs.Answer(key, codec, False, i.run(jobs.Begin(key, codec, True)).buffers[0]))
        for first in (True, False, False, False, False):
            turn = i.run(jobs.Decode(key, turn.buffers, first))
            if turn.refused:
                break  # The checks failed, so the partner asked for more bits and sent none itself.
            frames = [bytearray(frame) for frame in turn.buffers]
            for frame in frames:
                frame[int(begin * len(frame)) :] = bytes([byte]) * len(frame[int(begin * len(frame)) :])
            turn = j.run(jobs.DecodeAndMix(key, tuple(frames), np.inf, 0.5, 0.0))
            if turn.mixed or turn.refused:
                break
        assert turn.refused or turn.mixed
        assert np.isfinite(j.a).all() and np.linalg.norm(j.a - before) <= 0.5 * tau * 1.001 + 1e-5


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16"])
def test_payload_that_is_not_finite_is_refused(codec, poison):
    i, j = bounded()
    key = jobs.ChunkKey(i.id, next(COUNTER), 0)
    kind = {"fp32": "<f4", "fp16": "<f2"}.get(codec)
    values = np.zeros(256, np.float32)
    values[7] = poison
    payload = values.astype(kind).tobytes() if kind else (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    before = j.a
    j.run(jobs.Answer(key, codec, False, b""))
    turn = j.run(jobs.DecodeAndMix(key, (payload,), np.inf, 0.5, 0.0))
    assert turn.refused == "payload" and (j.a == before).all() and not j.algorithm._open


def test_clipped_exchange_still_conserves_the_sum():
    i, j = bounded(0.1)
    total = i.a + j.a
    [turn] = exchange(i, j, "modulo8")
    assert 0.0 < turn.share < 1.0
    np.testing.assert_allclose(i.a + j.a, total, atol=1e-6)


def test_bound_is_not_widened_by_distant_partners():
    """Dissensus attack (He et al. 2022): a partner at the largest distance does not widen the bound step by step."""
    i, j = bounded(0.1)
    first = i.algorithm._bound(0)
    for _ in range(20):
        j.ledger.a[:] = i.ledger.a + 10.0
        i.algorithm._mixed[:] = j.algorithm._mixed[:] = 0
        [turn] = exchange(i, j, "fp32")
        assert turn.share < 1.0
    i.algorithm._mixed[:] = 0
    assert i.algorithm._bound(0) <= first * 1.001


def test_exchanges_of_a_round_share_its_bound():
    """Peers come closer at each exchange. A liar met three times must not push three times as far."""
    i, j = bounded()
    first = i.algorithm._bound(0)
    for share in (2.0, 3.0, 3.0, 3.0):
        j.ledger.a[:] = i.ledger.a
        exchange(i, j, "fp32")
        assert i.algorithm._bound(0) == pytest.approx(first / share)
    i.outer(0.7, 0.8)
    assert i.algorithm._mixed.tolist() == [0]


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


class Trainee(Replica):
    """A replica with the default settings and the same progress of norm 1 each round."""

    def __init__(self, number):
        super().__init__(number, 256, clip=CLIP_FACTOR)
        self.progress = np.random.default_rng(1).standard_normal(256).astype(np.float32)
        self.progress /= np.linalg.norm(self.progress)

    def round(self, rounds=1.0):
        """Make rounds: `part` of a usual one, or several."""
        self.settle()
        self.x += np.float32(rounds) * self.progress
        self.outer(0.7, 0.8, min(1.0, rounds))
        self.settle()
        return self.algorithm._bound(0)


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_distant_liar_met_in_every_round_does_not_widen_the_bound(way):
    """Momentum must not widen it either: longer own steps of the victim would mean a wider bound."""
    victim, alone, liar = Trainee(1), Trainee(2), Replica(3, 256)
    for _ in range(60):
        bound, usual = victim.round(), alone.round()
        assert bound <= 1.001 * usual
        liar.ledger.a[:] = victim.ledger.a + np.float32(way * 1e3) * victim.progress
        [turn] = exchange(liar, victim, pull=0.3 / 0.7)
        assert turn.share < 1.0


def test_liar_just_within_the_bound_in_every_round_does_not_widen_it_without_limit():
    """Its differences are mixed whole and pull at momentum, but do not teach a wider bound."""
    victim, liar, bounds = Trainee(1), Replica(3, 256), []
    for _ in range(90):
        bounds.append(victim.round())
        liar.ledger.a[:] = victim.ledger.a - np.float32(0.99 * bounds[-1]) * victim.progress
        [turn] = exchange(liar, victim, pull=0.3 / 0.7)
        assert turn.share == 1.0
    assert bounds[-1] < 1.05 * bounds[-30] and bounds[-1] < 5.0 * bounds[10]


@pytest.mark.parametrize("factor", [2, 10, 30])
def test_slow_peer_with_rounds_as_long_as_a_fast_peers_does_not_lag(factor):
    """H by speed (algorithms section 8). All progress has one direction."""
    fast, slow = Trainee(1), Trainee(2)
    for _ in range(300):
        fast.round(2 * factor / (factor + 1))
        exchange(fast, slow, pull=0.3 / 0.7)
        slow.round(2 / (factor + 1))
    assert np.linalg.norm(fast.a) > 900 and np.linalg.norm(fast.a - slow.a) < 10


def test_bound_after_a_short_round_is_that_of_a_usual_round():
    usual, short = Trainee(1), Trainee(2)
    for _ in range(20):
        assert short.round(0.1) == pytest.approx(usual.round(), rel=1e-4)


def test_halves_that_trained_apart_come_together_through_clipped_exchanges():
    """They need four times the rounds that they walked in opposite directions."""
    sides = [[Trainee(2 * number + side) for number in range(4)] for side in (0, 1)]
    everybody, random, shares = sides[0] + sides[1], np.random.default_rng(0), []

    def play(rounds, groups):
        for _ in range(rounds):
            for replica in everybody:
                replica.round()
            for group in groups:
                order = [group[place] for place in random.permutation(len(group))]
                for first, second in zip(order[::2], order[1::2], strict=True):
                    shares.extend(turn.share for turn in exchange(first, second, pull=0.3 / 0.7))

    def apart():
        return np.linalg.norm(np.mean([r.a for r in sides[0]], axis=0) - np.mean([r.a for r in sides[1]], axis=0))

    for replica in sides[0]:
        replica.progress *= -1
    play(10, sides)
    distance = apart()
    assert distance > 8.0 * everybody[0].algorithm._bound(0)
    for replica in sides[0]:
        replica.progress *= -1
    shares.clear()
    play(40, [everybody])
    assert min(shares) < 0.2 and apart() < 0.01 * distance


def test_bound_before_any_step_or_distance_is_a_share_of_the_anchor():
    i, j = replicas(2, size=256, clip=2.0)
    bound = 2.0 * NORM_SHARE * np.linalg.norm(i.a)
    assert i.algorithm._bound(0) == pytest.approx(bound)
    j.ledger.a[:] = i.ledger.a
    exchange(i, j)
    i.algorithm._mixed[:] = 0
    # Equal anchors give a distance of 0, which predicts nothing.
    assert i.algorithm._bound(0) == pytest.approx(bound)


@pytest.mark.parametrize("codec", ["fp32", "modulo4"])
@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("lie", [1e3, 1e12])
def test_first_exchange_with_a_liar_moves_a_peer_without_steps_little_and_is_soon_forgotten(codec, still, lie):
    """The same holds for a chunk without own steps: a constant buffer, or an unused expert."""
    victim, liar = Trainee(1), Replica(3, 256)
    victim.ledger.a[:] = np.random.default_rng(2).standard_normal(256)
    victim.x[:] = victim.ledger.a
    if still:
        for _ in range(3):
            victim.outer(0.7, 0.8)
    before, most = victim.a, 0.5 * CLIP_FACTOR * NORM_SHARE * np.linalg.norm(victim.a)
    for number in range(3):
        liar.ledger.a[:] = victim.ledger.a + np.float32(lie) * victim.progress
        exchange(liar, victim, codec)
        assert np.linalg.norm(victim.a - before) <= most * (1.01, 1.51, 1.85)[number]
    honest, other = Trainee(2), Trainee(4)
    for _ in range(20):
        bound, usual = victim.round(), honest.round()
        other.ledger.a[:] = victim.ledger.a + np.float32(0.5) * victim.progress
        exchange(other, victim)
    assert bound <= 1.001 * usual


def test_peer_without_steps_keeps_up_with_a_partner_that_trains():
    """They meet once in each round of the partner, whose progress has one direction."""
    idle, other = Trainee(1), Trainee(1)
    for _ in range(5):
        idle.round()
        other.round()
        exchange(other, idle)
    for _ in range(40):
        other.round()
        exchange(other, idle)
        idle.algorithm.run(jobs.Renew())
    assert np.linalg.norm(other.a - idle.a) < 0.1 * np.linalg.norm(other.progress)


def test_all_exchanges_of_a_round_together_bring_no_more_than_some_bounds():
    victim, liar = Trainee(1), Replica(3, 256)
    victim.round()
    before, bound = victim.a, victim.algorithm._bound(0)
    for _ in range(200):
        liar.ledger.a[:] = victim.ledger.a + np.float32(1e3) * victim.progress
        exchange(liar, victim)
    assert np.linalg.norm(victim.a - before) == pytest.approx(0.5 * MOST_A_ROUND * bound, rel=1e-3)
    # A peer without steps lets partners in again when a round should be over.
    victim.algorithm.run(jobs.Renew())
    liar.ledger.a[:] = victim.ledger.a + np.float32(1e3) * victim.progress
    [turn] = exchange(liar, victim)
    assert turn.share > 0.0
    # A near partner brings little, and is mixed whole again after the next step.
    victim.round()
    liar.ledger.a[:] = victim.ledger.a + np.float32(0.1) * victim.progress
    assert [turn.share for _ in range(50) for turn in exchange(liar, victim)] == [1.0] * 50


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
        Pairwise().run(jobs.Job())
