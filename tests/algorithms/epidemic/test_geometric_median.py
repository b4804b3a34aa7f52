"""The geometric median against what defines it."""

from __future__ import annotations

import numpy as np
import pytest

from gossipdp.algorithms.epidemic.robust import aggregate, geometric_median
from tests.algorithms.epidemic.rows import normal


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
