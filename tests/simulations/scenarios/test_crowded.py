"""Where an exchange fills its round: repeated partners, the spectral gap, and the distance of replicas."""

from __future__ import annotations

import pytest

from simulations.scenarios.crowded import Ended, gap, play, repeated


def meetings(*pairs: tuple[int, int]) -> list[Ended]:
    return [Ended(float(number), pair, 1.0, 1.0) for number, pair in enumerate(pairs)]


def test_meetings_with_the_last_partner_and_the_one_before_are_counted_by_side() -> None:
    assert repeated(meetings((0, 1), (0, 1), (1, 0))) == (4 / 6, 2 / 6)
    assert repeated(meetings((0, 1), (2, 3), (0, 2), (1, 3), (0, 1))) == (0.0, 2 / 10)


def test_the_gap_is_1_after_an_exact_cycle_and_0_while_a_pair_meets_nobody_else() -> None:
    assert gap(meetings((0, 1), (2, 3), (0, 2), (1, 3)), 4, 2.0) == 1.0
    assert gap(meetings((0, 1), (2, 3), (0, 1), (2, 3)), 4, 2.0) == pytest.approx(0.0)
    assert gap([Ended(0.0, (0, 1), 1.0, 0.5)], 2, 1.0) == pytest.approx(0.5), "half the chunks"


@pytest.mark.long
def test_an_exchange_as_long_as_a_round_leaves_replicas_as_near_as_a_fast_link() -> None:
    fast, late = (play(8, lateness, (1.0,), "schedule", rounds=30, seed=1) for lateness in (0.0, 1.0))
    assert 0.85 < late.lasts < 1.1 and late.exchanges > 0.9
    assert late.again < 0.1 and late.distance < 1.3 * fast.distance
