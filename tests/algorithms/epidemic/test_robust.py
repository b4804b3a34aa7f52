"""Robust aggregation against its bounds: f bad rows leave the result near the others."""

from __future__ import annotations

import numpy as np
import pytest

from gossipdp.algorithms.epidemic.robust import RULES, Distances, aggregate, plan, trimmed_mean
from gossipdp.protocol.model import Outer
from simulations.lab.robustness.convex import Peer, exchange
from tests.algorithms.epidemic.rows import ROBUST, normal, spread

MIXING = [name for name in RULES if name.startswith("nnm")]
SIZES = [(3, 1), (5, 1), (5, 2), (8, 3), (10, 2), (15, 3), (16, 3), (16, 7), (31, 6)]


def kappa(name, n, f):
    """kappa of (f, kappa)-robustness, from table 1 and lemma 1 of arXiv 2302.01772."""
    over = f / (n - 2 * f)
    plain = 6 * over * (1 + over) if name.endswith("trimmed") else 4 * (1 + over) ** 2
    return plain if not name.startswith("nnm") else 8 * f / (n - f) * (plain + 1)


def influence(decided):
    """Share of each contributor in the points before trimming."""
    return decided.masses / max(1, decided.masses.sum()) @ decided.combination


def self_centred_clipping(own, other, weight, tau):
    """ClippedGossip with one neighbour (He, Karimireddy & Jaggi 2022, arXiv 2202.01545):
    own + w min(1, tau / ||other - own||) (other - own)."""
    apart = other.astype(np.float64) - own
    return own + weight * min(1.0, tau / np.linalg.norm(apart)) * apart


# -- bad rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize(("n", "f"), SIZES)
def test_bad_rows_at_any_distance_leave_the_result_within_the_bound_of_the_paper(name, n, f):
    honest = normal((n, f), n - f) + np.float32(3.0)
    bound = np.sqrt(kappa(name, n, f)) * spread(honest.astype(np.float64))
    direction = normal(1, f)
    for far in (0.1, 1.0, 10.0, 1e4, 1e18, 1e37):
        for bad in (direction * far, np.tile(direction[:1] * far, (f, 1)), honest[:f] - np.float32(far)):
            rows = np.concatenate([bad.astype(np.float32), honest])
            found = aggregate(RULES[name], rows, [1.0] * n, f / n)
            assert np.linalg.norm(found - honest.mean(axis=0)) <= bound


@pytest.mark.parametrize(("n", "f"), SIZES)
def test_one_bad_row_moves_the_mean_to_any_place(n, f):
    rows = normal(0, n)
    rows[0] = 1e18
    assert np.linalg.norm(aggregate(RULES["mean"], rows, [1.0] * n, f / n)) > 1e16


@pytest.mark.parametrize("name", ROBUST)
def test_more_bad_rows_than_tolerated_break_every_rule(name):
    """Documents the limit: the bound holds for f bad rows only."""
    n, f = 16, 3
    rows = normal(0, n)
    rows[: n // 2 + 1] = 1e6
    assert np.linalg.norm(aggregate(RULES[name], rows, [1.0] * n, f / n)) > 1e5


@pytest.mark.parametrize("name", MIXING)
def test_distant_colluders_are_in_no_honest_neighbourhood(name):
    rows = normal(0, 16)
    rows[[0, 7, 15]] = 1e6
    distances = Distances(16)
    distances.add(rows)
    found = plan(RULES[name], distances, [1.0] * 16)
    shares = influence(found)
    assert np.isclose(shares.sum(), 1.0)
    assert shares[[0, 7, 15]].max() < 0.5 * np.delete(shares, [0, 7, 15]).min()


def test_trimming_alone_leaves_nothing_of_sparse_increments_and_mixing_first_leaves_most():
    random = np.random.default_rng(0)
    signal = np.zeros(4096)
    signal[:64] = 1.0
    rows = np.zeros((16, 4096), np.float32)
    for row in rows:  # A quarter of the true indices each, as in a top-k of noisy increments.
        row[random.choice(64, 16, replace=False)] = 1.0
        row[random.choice(4096, 48, replace=False)] += random.standard_normal(48)
    kept = {name: aggregate(rule, rows, [1.0] * 16) @ signal / 64 for name, rule in RULES.items()}
    assert kept["mean"] == pytest.approx(0.25, abs=0.02)
    assert kept["trimmed"] < 0.7 * kept["mean"]
    assert kept["nnm-trimmed"] > 0.9 * kept["mean"]


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBUST)
def test_weight_of_a_liar_counts_no_more_than_twice_the_median(name):
    rows = normal(2, 10)
    stated = aggregate(RULES[name], rows, [2.0] + [1.0] * 9)
    assert np.array_equal(aggregate(RULES[name], rows, [1e12] + [1.0] * 9), stated)
    assert np.linalg.norm(stated - aggregate(RULES[name], rows, [1.0] * 10)) > 1e-3


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("weight", [1e9, 3.0, 0.5, 1e-9])
def test_bad_rows_of_unequal_weight_are_bounded_too(name, weight):
    honest = normal(3, 13)
    weights = [weight] * 3 + [1.0, 2.0] * 6 + [1.0]
    bound = 3.0 * spread(honest.astype(np.float64))
    for far in (1.0, 1e3, 1e30):
        rows = np.concatenate([np.full((3, 50), far, np.float32), honest])
        assert np.linalg.norm(aggregate(RULES[name], rows, weights)) < bound


def test_mean_is_the_weighted_mean_and_believes_every_weight():
    rows, weights = normal(4, 9), [1.0, 5.0, 2.0, 1e4, 3.0, 1.0, 1.0, 0.25, 7.0]
    expected = np.average(rows.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(aggregate(RULES["mean"], rows, weights), expected, rtol=1e-5, atol=1e-6)


def test_trimmed_mean_cuts_as_much_mass_as_the_heaviest_have():
    rows = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]], np.float32)
    # Half of the mass of 4 is cut at each end: 0 and half of 1 below, 100 and part of 3 above.
    assert aggregate(trimmed_mean, rows, [1.0, 2.0, 1.0, 1.0, 1.0], 0.2)[0] == pytest.approx((1.0 + 2.0) / 2)
    assert aggregate(trimmed_mean, rows, [1.0] * 5, 0.2)[0] == 2.0
    assert aggregate(trimmed_mean, rows, [1.0] * 5, 0.0)[0] == pytest.approx(21.2)


def test_trimming_of_half_or_more_is_the_weighted_median():
    rows = np.array([[0.0], [1.0], [5.0], [9.0]], np.float32)
    # The heaviest may have 2 of 5.
    assert aggregate(trimmed_mean, rows, [1.0, 1.0, 1.0, 2.0], 0.25)[0] == 5.0
    # 4 of 6 at each end would leave nothing: the weighted median lies between these two.
    assert aggregate(trimmed_mean, rows[1:], [1.0, 2.0, 2.0], 0.4)[0] == 5.0


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_row_without_a_usable_weight_does_not_count(name, weight):
    rows = normal(5, 11)
    found = aggregate(RULES[name], rows, [1.0] * 4 + [weight] + [2.0] * 6)
    assert np.array_equal(found, aggregate(RULES[name], np.delete(rows, 4, axis=0), [1.0] * 4 + [2.0] * 6))


# -- what is not a number ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_with_one_value_that_is_not_finite_counts_in_no_chunk(name, value):
    rows = normal(6, 16, 300)
    rows[5, 299] = value
    distances = Distances(16)
    for start in (0, 100, 200):
        distances.add(rows[:, start : start + 100])
    found = plan(RULES[name], distances, [1.0] * 16)
    assert distances.finite.sum() == 15 and influence(found)[5] == 0.0
    others = np.delete(rows, 5, axis=0)
    without = Distances(15)
    for start in (0, 100, 200):
        without.add(others[:, start : start + 100])
    expected = plan(RULES[name], without, [1.0] * 15)
    for start in (0, 100, 200):
        chunk = slice(start, start + 100)
        assert np.array_equal(found.combine(rows[:, chunk]), expected.combine(others[:, chunk]))


@pytest.mark.parametrize("name", RULES)
def test_no_usable_contributor_moves_nothing(name):
    rows = np.full((4, 7), np.nan, np.float32)
    assert np.array_equal(aggregate(RULES[name], rows, [1.0] * 4), np.zeros(7))
    assert np.array_equal(aggregate(RULES[name], np.zeros((0, 7), np.float32), []), np.zeros(7))


# -- self-centred clipping ---------------------------------------------------------------------------------------------


def test_pairwise_clips_each_chunk():
    """Algorithms section 3: tau_c = 2 sqrt2 ||own outer step on c|| before any exchange; k from the smaller tau."""
    random = np.random.default_rng(15)
    size, factors = 3 * 256, np.repeat([0.1, 1.0, 30.0], 256)
    first, second = (Peer(number, size, clip=2.0) for number in (1, 2))
    for peer in (first, second):
        peer.step(random.standard_normal(size).astype(np.float32), Outer(0.7, 0.7))
    steps = [peer.ledger.a - peer.began for peer in (first, second)]
    # Move them apart: little in the first chunk, far in the last.
    apart = (factors * random.standard_normal(size)).astype(np.float32)
    second.ledger.a[:] = first.ledger.a + apart
    before = first.ledger.a.copy(), second.ledger.a.copy()
    exchange(first, second, 1, "fp32", 0.7)
    clipped = []
    for chunk in range(3):
        span = first.ledger.span(chunk)
        tau = 2.0 * np.sqrt(2.0) * min(float(np.linalg.norm(step[span])) for step in steps)
        clipped.append(float(np.linalg.norm(apart[span])) > tau)
        for own, other, peer in ((0, 1, first), (1, 0, second)):
            expected = self_centred_clipping(before[own][span], before[other][span], 0.5, tau)
            np.testing.assert_allclose(peer.ledger.a[span], expected, rtol=1e-5, atol=1e-5)
    assert clipped == [False, False, True]
