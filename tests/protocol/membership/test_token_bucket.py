"""What a peer may spend on what can wait: a token bucket, and how far it may be overdrawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.membership.dissemination import TokenBucket


def test_full_at_first_it_refills_at_its_rate_and_never_beyond() -> None:
    budget = TokenBucket(100.0, 400.0, 5.0)
    assert budget.left(5.0) == 400.0 and budget.ready(5.0) == 5.0
    budget.spend(300.0, 5.0)
    assert [budget.left(now) for now in (5.0, 6.0, 7.5, 9.0, 50.0)] == [100.0, 200.0, 350.0, 400.0, 400.0]


def test_overdrawn_it_says_when_nothing_is_owed_any_more() -> None:
    budget = TokenBucket(100.0, 400.0, 0.0)
    budget.spend(650.0, 0.0)
    assert budget.left(0.0) == -250.0 and budget.ready(0.0) == 2.5 and budget.ready(1.0) == 2.5
    assert budget.left(2.5) == pytest.approx(0.0) and budget.ready(3.0) == 3.0


def test_debt_has_an_end() -> None:
    budget = TokenBucket(100.0, 400.0, 0.0)
    for _ in range(50):
        budget.spend(300.0, 0.0)
    assert budget.left(0.0) == -400.0 and budget.ready(0.0) == 4.0


def test_time_that_runs_backwards_fills_nothing() -> None:
    budget = TokenBucket(100.0, 400.0, 10.0)
    budget.spend(400.0, 10.0)
    assert budget.left(3.0) == 0.0 and budget.left(10.0) == 0.0 and budget.left(11.0) == 100.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 500.0)), max_size=60))
def test_spending_only_what_is_left_stays_within_rate_and_burst(steps: list[tuple[float, float]]) -> None:
    budget, now, spent = TokenBucket(100.0, 400.0, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if amount <= budget.left(now):
            budget.spend(amount, now)
            spent += amount
    assert spent <= 400.0 + 100.0 * now + 1e-6
