"""The meetings of `matchings` agree as the mathematics of pairwise averaging says.

A round of random perfect matchings multiplies the sum of squared distances to the mean by (N-2)/(2(N-1)). The mean of a
pair stays, its difference goes, and two peers correlate by -1/(N-1) under a random matching (Boyd et al. 2006, section
II). Random measurements may be three standard errors off.
"""

from __future__ import annotations

from itertools import pairwise, repeat
from statistics import mean, stdev

import numpy as np
import pytest

from simulations.lab.theory.matchings import POLICIES, Conditions, Meetings, agreement, perfect, training

BY_NAME = {policy.name: policy for policy in POLICIES}


def disagreement(x: np.ndarray) -> float:
    return float(np.square(x - x.mean(0)).sum())


def contraction(count: int) -> float:
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
    assert standard_errors(factors(count), contraction(count)) < 3


@pytest.mark.parametrize("parts", [2, 4])
def test_meeting_with_a_chance_of_one_in_m_contracts_as_a_fragment_of_one_in_m(parts: int) -> None:
    """1 - (1 - rho)/M: for one coordinate, a failed meeting and a fragment without it are the same."""
    expected = 1 - (1 - contraction(16)) / parts
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
    assert held == 1.0 and perfectly[0] == pytest.approx(contraction(8) ** 3, rel=0.25)
    assert scheduled[0] < 1e-28 < perfectly[0] < offered[0]


def test_stationary_noise_is_bounded_by_one_meeting_per_round() -> None:
    """Without meetings unit noise adds up. With one per round it stays below 1/(1 - 1/2)."""
    stays, _ = training(8, BY_NAME["schedule"], Conditions(), 20, 3)
    none, _ = training(8, BY_NAME["schedule"], Conditions(failing=1.0), 20, 1)
    assert stays < 1.0 and none > 20.0
