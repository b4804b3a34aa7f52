"""Growth of disagreement under `pairwise`: invariant 6 of algorithms section 9, on the real jobs."""

import numpy as np
import pytest

from tests.algorithms.replicas import exchange, replicas

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
