"""What does not change a robust aggregate: order, units, copies; and the number of rows that it tolerates."""

from __future__ import annotations

import numpy as np
import pytest

from gossipdp.algorithms.epidemic.robust import RULES, SHARE, Distances, aggregate, plan, tolerated, trimmed_mean
from tests.algorithms.epidemic.rows import ROBUST, normal, spread


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
