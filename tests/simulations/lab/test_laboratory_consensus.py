"""B7: measured contraction and growth match algorithms section 7, and noise matches section 9, 13.

A round of random perfect matchings multiplies the sum of squared distances to the mean by (N-2)/(2(N-1)). The mean of a
pair stays, its difference goes, and two peers correlate by -1/(N-1) under a random matching (Boyd et al. 2006, section
II). Random measurements may be three standard errors off.
"""

import sys
from itertools import pairwise, repeat
from statistics import mean, stdev

import numpy as np
import pytest
from simulations.lab.baselines.gossip import complete, exponential, ring
from simulations.lab.theory.matchings import POLICIES, Conditions, Meetings, agreement, perfect, training

from simulations.lab.theory.consensus import (
    Row,
    contraction,
    exact_on,
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


def test_ring_and_exponential_graph_of_no_power_of_two_never_reach_the_mean():
    assert exact_on(ring, 8) == exact_on(exponential, 12) == sys.maxsize
    assert exact_on(complete, 12) == 1


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


BY_NAME = {policy.name: policy for policy in POLICIES}


def disagreement(x: np.ndarray) -> float:
    return float(np.square(x - x.mean(0)).sum())


def by_matching(count: int) -> float:
    return (count - 2) / (2 * (count - 1))


def factors(count: int, failing: float = 0.0, trials: int = 150, rounds: int = 4) -> list[float]:
    """Factor of the disagreement in every round of every trial that had any left."""
    found = []
    for seed in range(trials):
        history = [disagreement(x) for x, _ in zip(perfect(count, failing, seed, 8), repeat(0, rounds), strict=False)]
        found += [after / before for before, after in pairwise(history) if before > 1e-12 * history[0]]
    return found


def standard_errors(found: list[float], expected: float) -> float:
    """Distance of the mean from `expected`, in standard errors."""
    return abs(mean(found) - expected) / (stdev(found) / len(found) ** 0.5)


@pytest.mark.parametrize("count", [4, 8, 16, 64])
def test_random_perfect_matching_contracts_by_its_closed_form(count: int) -> None:
    assert standard_errors(factors(count), by_matching(count)) < 3


@pytest.mark.parametrize("parts", [2, 4])
def test_meeting_with_a_chance_of_one_in_m_contracts_as_a_fragment_of_one_in_m(parts: int) -> None:
    """1 - (1 - rho)/M: for one coordinate, a failed meeting and a fragment without it are the same."""
    expected = 1 - (1 - by_matching(16)) / parts
    assert standard_errors(factors(16, failing=1 - 1 / parts), expected) < 3


@pytest.mark.parametrize("name", ["schedule", "schedule, else random", "the same, weights 1/2"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_hypercube_is_exact_after_log2_rounds_and_not_before(steps: int, name: str) -> None:
    left, held = agreement(2**steps, BY_NAME[name], Conditions(), tuple(range(1, steps + 1)), 3)
    assert left[-1] < 1e-28 and all(share > 1e-6 for share in left[:-1])
    assert held == pytest.approx(1.0)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("conditions", [Conditions(), Conditions(spread=1.0, failing=0.2, exchanges=2)])
def test_means_never_move_and_disagreement_never_grows(policy: object, conditions: Conditions) -> None:
    meetings = Meetings(9, policy, conditions, 5, 16)  # type: ignore[arg-type]
    before, history = meetings.x.mean(0), [meetings.disagreement()]
    for _ in range(8):
        meetings.run(1)
        history.append(meetings.disagreement())
    np.testing.assert_allclose(meetings.x.mean(0), before, atol=1e-12)
    assert all(after <= before + 1e-12 for before, after in pairwise(history)) and history[-1] < 0.1 * history[0]


def test_random_matching_without_a_centre_is_behind_the_perfect_one_and_the_hypercube_ahead_of_both() -> None:
    after, trials = (3,), 30
    perfectly, held = agreement(8, None, Conditions(), after, trials)
    offered, _ = agreement(8, BY_NAME["the same, both must want"], Conditions(), after, trials)
    scheduled, _ = agreement(8, BY_NAME["schedule"], Conditions(), after, trials)
    assert held == 1.0 and perfectly[0] == pytest.approx(by_matching(8) ** 3, rel=0.25)
    assert scheduled[0] < 1e-28 < perfectly[0] < offered[0]


def test_stationary_noise_is_bounded_by_one_meeting_per_round() -> None:
    """Without meetings unit noise adds up. With one per round it stays below 1/(1 - 1/2)."""
    stays, _ = training(8, BY_NAME["schedule"], Conditions(), 20, 3)
    none, _ = training(8, BY_NAME["schedule"], Conditions(failing=1.0), 20, 1)
    assert stays < 1.0 and none > 20.0
