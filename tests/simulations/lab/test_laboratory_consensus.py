"""B7: measured contraction and growth match algorithms section 7, and noise matches section 9, 13.

A round of random perfect matchings multiplies the sum of squared distances to the mean by (N-2)/(2(N-1)). The mean of a
pair stays, its difference goes, and two peers correlate by -1/(N-1) under a random matching (Boyd et al. 2006, section
II).
"""

import sys

import numpy as np
import pytest

from simulations.lab.theory.consensus import (
    Row,
    contraction,
    exact_on,
    exponential,
    growth,
    main,
    matching,
    momenta,
    momentum,
    product,
    quadratic,
    stationary,
)


def failures(rows):
    return [row for row in rows if not row.ok]


def test_every_line_of_the_table_holds_to_a_hundredth():
    rows = list(contraction(trials=10_000, seed=0, sizes=(4, 16)))
    assert not failures(rows) and len(rows) == 26


def test_growth_under_momentum_holds_to_a_hundredth():
    rows = list(momenta(trials=3000, seed=0))
    assert not failures(rows) and len(rows) == 9


def test_disagreement_under_the_products_momentum_matches_the_formula():
    for row in product(runs=16, seed=0):
        assert row.deviation < 0.04, row


def test_exponential_graph_of_no_power_of_two_never_reaches_the_mean():
    assert exact_on(exponential, 12) == sys.maxsize
    assert exact_on(exponential, 16) == 4


def test_decoupled_and_default_momentum_shrink_disagreement_and_coupled_grows_it():
    for mu in (0.0, 0.5, 0.8, 0.9):
        assert momentum(16, mu, 0.0) == pytest.approx(max(matching(16) ** 0.5, mu))
        assert momentum(16, mu, 0.3) < max(0.72, mu)
    assert momentum(16, 0.9, 1.0) > 1.01 and growth(16, 0.9, 1.0, 3000, 1) > 1.0


def test_stationary_distance_of_pairwise_matches_the_formula():
    rows = list(quadratic(seed=0, size=512, rounds=16))
    assert not failures(rows) and all(row.measured > 0.005 for row in rows)


def test_stationary_distance_without_curvature_is_rho_sigma2_over_one_less_rho():
    sigma2 = (1 - 1 / 8) * 5 * 0.1**2
    assert stationary(8, 0.0, 0.1, 5, 1.0) == pytest.approx(matching(8) * sigma2 / (1 - matching(8)))


def test_stationary_distance_solves_its_recursion():
    rho, shrink = matching(6), (1 - 0.2 * 1.5) ** 2
    distance = 0.0
    for _ in range(200):
        for _ in range(3):
            distance = shrink * distance + (1 - 1 / 6) * (0.2 * 2.0) ** 2
        distance *= rho
    assert stationary(6, 1.5, 0.2, 3, 2.0) == pytest.approx(distance)


def test_missed_line_is_reported(capsys, monkeypatch):
    rows = [Row("one", 0.5, 0.5001, 0.0002, True), Row("other", 0.5, 0.6, 0.2, False)]
    monkeypatch.setattr("simulations.lab.theory.consensus.measure", lambda trials, seed: rows)
    assert main([]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "missed" not in first and second.endswith("missed")
    monkeypatch.setattr("simulations.lab.theory.consensus.measure", lambda trials, seed: rows[:1])
    assert main([]) == 0


def test_factors_near_one_are_compared_by_their_rates():
    from simulations.lab.theory.consensus import _factor

    assert _factor("", 0.99, 0.9901).deviation == pytest.approx(0.01, abs=0.001)
    assert not _factor("", 0.99, 0.985).ok and np.isclose(0.985, 0.99, rtol=0.01)
