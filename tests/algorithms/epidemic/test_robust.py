"""Robust aggregation against its bounds: f bad rows leave the result near the others; and the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gossipdp.algorithms.epidemic.robust import (
    RULES,
    SHARE,
    Distances,
    aggregate,
    geometric_median,
    plan,
    tolerated,
    trimmed_mean,
)
from simulations.lab.robustness.convex import Peer, exchange

ROBUST = [name for name in RULES if name != "mean"]
MIXING = [name for name in RULES if name.startswith("nnm")]
SIZES = [(3, 1), (5, 1), (5, 2), (8, 3), (10, 2), (15, 3), (16, 3), (16, 7), (31, 6)]


def kappa(name, n, f):
    """kappa of (f, kappa)-robustness, from table 1 and lemma 1 of arXiv 2302.01772."""
    over = f / (n - 2 * f)
    plain = 6 * over * (1 + over) if name.endswith("trimmed") else 4 * (1 + over) ** 2
    return plain if not name.startswith("nnm") else 8 * f / (n - f) * (plain + 1)


def spread(rows):
    """Standard deviation around the mean, of whole vectors."""
    return np.sqrt(np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1)))


def normal(seed, n, size=50):
    return np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32)


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


# -- what does not matter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16])
def test_equal_rows_come_back(name, n):
    row = normal(7, 1)
    for weights in ([1.0] * n, [float(1 + k) for k in range(n)]):
        found = aggregate(RULES[name], np.repeat(row, n, axis=0), weights)
        np.testing.assert_allclose(found, row[0], rtol=1e-14)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [2, 5, 11, 16])
def test_order_of_contributors_does_not_matter(name, n):
    random = np.random.default_rng(8)
    rows, weights = normal(8, n), random.uniform(1.0, 3.0, n)
    expected = aggregate(RULES[name], rows, weights.tolist())
    order = random.permutation(n)
    np.testing.assert_allclose(aggregate(RULES[name], rows[order], weights[order].tolist()), expected, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10])
def test_unit_of_rows_and_of_weights_does_not_matter(name, factor):
    rows, weights = normal(9, 10), [1.0, 2.0] * 5
    expected = aggregate(RULES[name], rows, weights)
    found = aggregate(RULES[name], rows * np.float32(factor), [factor * weight for weight in weights])
    np.testing.assert_allclose(found, expected * factor, rtol=1e-12)


@pytest.mark.parametrize("name", ROBUST)
def test_copies_of_one_row_count_as_that_number_of_contributors(name):
    """Copies are near each other, but f copies must not move the result further than f bad rows."""
    honest = normal(10, 13)
    copied = np.repeat(honest[:1] + np.float32(2.0), 3, axis=0)
    found = aggregate(RULES[name], np.concatenate([copied, honest]), [1.0] * 16)
    assert np.linalg.norm(found - honest.mean(axis=0)) < spread(honest)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_fewer_than_five_tolerate_none(name, n):
    assert tolerated(SHARE, n) == 0
    rows, weights = normal(11, n), [1.0, 2.0, 1.0, 2.0][:n]
    if not name.endswith("median"):
        expected = np.average(rows.astype(np.float64), axis=0, weights=weights)
        np.testing.assert_allclose(aggregate(RULES[name], rows, weights), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("share", "n", "f"),
    [(0.2, 0, 0), (0.2, 4, 0), (0.2, 5, 1), (0.2, 9, 1), (0.2, 10, 2), (0.2, 15, 3), (0.2, 16, 3), (0.1, 30, 3),
     (0.29, 100, 29), (0.0, 50, 0), (0.49, 2, 0), (0.49, 3, 1), (0.4999, 4, 1), (0.4999, 1000, 499)],
)  # fmt: skip
def test_tolerated(share, n, f):
    assert tolerated(share, n) == f


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, float("nan")])
def test_half_cannot_be_tolerated(share):
    with pytest.raises(ValueError, match="share"):
        tolerated(share, 10)


def test_wrong_shapes_are_refused():
    distances = Distances(3)
    for rows in (np.zeros((4, 5), np.float32), np.zeros(3, np.float32)):
        with pytest.raises(ValueError, match="3 contributors"):
            distances.add(rows)
    with pytest.raises(ValueError, match="2 weights for 3"):
        plan(trimmed_mean, distances, [1.0, 1.0])


# -- the geometric median ----------------------------------------------------------------------------------------------


def test_geometric_median_of_a_line_is_its_median():
    rows = np.array([[0.0], [1.0], [2.0], [50.0], [4000.0]], np.float32)
    assert aggregate(geometric_median, rows, [1.0] * 5)[0] == pytest.approx(2.0, abs=1e-3)
    assert aggregate(geometric_median, rows[:4], [1.0, 1.0, 1.5, 1.0])[0] == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 1.5]])
def test_geometric_median_of_two_is_neither_of_them(weights):
    """Otherwise one of two members would train without effect."""
    rows = normal(5, 2)
    expected = np.average(rows.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(aggregate(geometric_median, rows, weights), expected, rtol=1e-5, atol=1e-6)


def test_row_thousands_of_median_distances_away_does_not_count_in_the_geometric_median():
    rows = normal(17, 8)
    rows[0] = 1e7
    found = aggregate(geometric_median, rows, [1.0] * 8)
    np.testing.assert_allclose(found, aggregate(geometric_median, rows[1:], [1.0] * 7), atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_pulls_cancel_at_the_geometric_median(seed):
    rows = normal(seed, 12, 6)
    weights = np.random.default_rng(seed).uniform(1.0, 1.5, 12)
    apart = rows - aggregate(geometric_median, rows, weights.tolist())
    pull = (weights[:, None] * apart / np.linalg.norm(apart, axis=1, keepdims=True)).sum(axis=0)
    assert np.linalg.norm(pull) < 1e-4 * weights.sum()


def test_geometric_median_is_where_more_than_half_are():
    rows = normal(12, 9)
    rows[[1, 3, 4, 6, 8]] = rows[1]
    np.testing.assert_allclose(aggregate(geometric_median, rows, [1.0] * 9), rows[1], rtol=1e-12)


# -- the same bits everywhere ------------------------------------------------------------------------------------------


def digest():
    """Hash of every rule's result on rows from integers, in uneven chunks."""
    counts = (np.arange(16 * 9000, dtype=np.int64) * 2654435761 + 12345) % 65537
    rows = (counts.reshape(16, 9000) - 32768).astype(np.float32) / np.float32(1000.0)
    rows *= rows * rows  # The last bits of numpy's ** depend on the processor.
    rows[3] *= np.float32(1e6)
    rows[4] = rows[5]
    weights = [float(1 + n % 5) for n in range(16)]
    chunks = [slice(0, 5000), slice(5000, 8191), slice(8191, 9000)]
    distances = Distances(16)
    for chunk in chunks:
        distances.add(rows[:, chunk])
    found = hashlib.blake2b(distances.squared.tobytes(), digest_size=8)
    for rule in RULES.values():
        decided = plan(rule, distances, weights)
        for chunk in chunks:
            found.update(decided.combine(rows[:, chunk]).tobytes())
    return found.hexdigest()


GOLDEN = "32d6b340c4ee9c5d"


def test_bits_are_those_of_any_other_processor():
    assert digest() == GOLDEN


def test_bits_are_the_same_without_the_vector_instructions_of_this_processor():
    from numpy._core import _multiarray_umath as umath

    had = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(had), "OMP_NUM_THREADS": "1"}
    path = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    program = (
        "import test_robust\n"
        "from numpy._core import _multiarray_umath as umath\n"
        "assert not any(umath.__cpu_features__[name] for name in umath.__cpu_dispatch__)\n"
        "print(test_robust.digest())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN


@pytest.mark.parametrize("name", RULES)
def test_second_pass_gives_the_same_result_for_other_chunks(name):
    rows = normal(13, 10, 5000)
    whole = Distances(10)
    whole.add(rows)
    decided = plan(RULES[name], whole, [1.0, 2.0] * 5)
    pieces = [decided.combine(rows[:, start : start + 777]) for start in range(0, 5000, 777)]
    assert np.array_equal(np.concatenate(pieces), decided.combine(rows))


def test_distances_are_those_of_whole_vectors():
    rows = normal(14, 6, 10_000)
    distances = Distances(6)
    for start in range(0, 10_000, 4097):
        distances.add(rows[:, start : start + 4097])
    wide = rows.astype(np.float64)
    expected = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances.squared, expected, rtol=1e-13)
    assert np.array_equal(distances.squared, distances.squared.T)


# -- self-centred clipping ---------------------------------------------------------------------------------------------


def test_pairwise_clips_each_chunk():
    """Algorithms section 3: tau_c = 2 sqrt2 ||own outer step on c|| before any exchange; k from the smaller tau."""
    random = np.random.default_rng(15)
    size, factors = 3 * 256, np.repeat([0.1, 1.0, 30.0], 256)
    first, second = (Peer(number, size, clip=2.0) for number in (1, 2))
    for peer in (first, second):
        peer.step(random.standard_normal(size).astype(np.float32))
    steps = [peer.ledger.a - peer.began for peer in (first, second)]
    # Move them apart: little in the first chunk, far in the last.
    apart = (factors * random.standard_normal(size)).astype(np.float32)
    second.ledger.a[:] = first.ledger.a + apart
    before = first.ledger.a.copy(), second.ledger.a.copy()
    exchange(first, second, 1, "fp32")
    clipped = []
    for chunk in range(3):
        span = first.ledger.span(chunk)
        tau = 2.0 * np.sqrt(2.0) * min(float(np.linalg.norm(step[span])) for step in steps)
        clipped.append(float(np.linalg.norm(apart[span])) > tau)
        for own, other, peer in ((0, 1, first), (1, 0, second)):
            expected = self_centred_clipping(before[own][span], before[other][span], 0.5, tau)
            np.testing.assert_allclose(peer.ledger.a[span], expected, rtol=1e-5, atol=1e-5)
    assert clipped == [False, False, True]
