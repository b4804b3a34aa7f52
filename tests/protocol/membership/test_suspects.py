"""How long a suspicion lasts, as tables (Lifeguard section IV.B, and the limits of memberlist)."""

from __future__ import annotations

import pytest

from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.membership.suspects import suspicion_bounds, suspicion_timeout


@pytest.mark.parametrize(
    ("preset", "members", "confirmations", "seconds"),
    [
        ("local", 2, 0, 7.2),
        ("local", 16, 0, 8.860),
        ("local", 16, 3, 1.477),
        ("local", 99, 3, 2.4),
        ("lan", 2, 0, 24.0),
        ("lan", 9, 3, 4.0),
        ("lan", 16, 0, 29.531),
        ("lan", 16, 1, 17.226),
        ("lan", 16, 2, 10.029),
        ("lan", 16, 3, 4.922),
        ("lan", 128, 0, 50.655),
        ("lan", 128, 1, 29.549),
        ("lan", 128, 2, 17.202),
        ("lan", 128, 3, 8.442),
        ("lan", 999, 3, 12.0),
        ("wan", 4, 2, 4.0),
        ("wan", 16, 2, 4.922),
        ("wan", 128, 0, 50.655),
        ("wan", 128, 1, 24.021),
        ("wan", 128, 2, 8.442),
        ("wan", 128, 3, 8.442),
        ("wan", 999, 2, 12.0),
    ],
)
def test_suspicion_of_each_preset_by_members_and_confirmations(
    preset: str, members: int, confirmations: int, seconds: float
) -> None:
    config = PRESETS[preset]
    bounds = suspicion_bounds(config.suspicion_multiplier, config.suspicion_longest, members, config.probe_interval)
    assert suspicion_timeout(confirmations, config.confirmations, bounds) == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("confirmations", "expected", "seconds"),
    [(0, 3, 30.0), (1, 3, 16.0), (2, 3, 7.810), (3, 3, 2.0), (4, 3, 2.0), (0, 0, 2.0)],
)
def test_suspicion_shrinks_with_the_log_of_its_confirmations(confirmations: int, expected: int, seconds: float) -> None:
    """Lifeguard IV.B, the table of memberlist's own test."""
    assert suspicion_timeout(confirmations, expected, (2.0, 30.0)) == pytest.approx(seconds, abs=1e-3)
