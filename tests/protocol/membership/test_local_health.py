"""Local health and the times of a probe that follow from it (Lifeguard section IV.A)."""

from __future__ import annotations

import pytest

from gossipdp.protocol.membership.local_health import LocalHealth, probe_times


@pytest.mark.parametrize(
    ("multiplier", "rtt", "direct", "verdict"),
    [
        (1, None, 0.5, 1.0),
        (1, 0.1, 0.5, 1.0),
        (1, 0.2, 0.6, 1.2),
        (1, 0.9, 2.7, 5.4),
        (1, 60.0, 4.0, 8.0),
        (3, None, 1.5, 3.0),
        (3, 0.2, 1.5, 3.0),
        (8, 60.0, 4.0, 8.0),
    ],
)
def test_probe_times_follow_local_health_and_round_trip(
    multiplier: int, rtt: float | None, direct: float, verdict: float
) -> None:
    assert probe_times(1.0, 0.5, multiplier, rtt, 8) == pytest.approx((direct, verdict))


def test_local_health_stays_between_one_and_its_maximum() -> None:
    """Lifeguard IV.A: LHM saturates at both ends."""
    health = LocalHealth(4)
    seen = [health.multiplier]
    for change in (health.better, health.worse, health.worse, health.worse, health.worse, health.better):
        change()
        seen.append(health.multiplier)
    assert seen == [1, 1, 2, 3, 4, 4, 3]
    health.worse(100)
    assert health.multiplier == 4
