"""Membership's formulas as tables (Lifeguard section IV; memberlist's suspicion and retransmit limits)."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gossipdp.protocol.membership.config import LAN, LOCAL, PRESETS, WAN
from gossipdp.protocol.membership.dissemination import transmit_limit
from gossipdp.protocol.membership.local_health import LocalHealth, probe_times
from gossipdp.protocol.membership.suspects import suspicion_bounds, suspicion_timeout
from gossipdp.protocol.wire.messages import MAX_ACCUSERS


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


@pytest.mark.parametrize(
    ("multiplier", "members", "times"), [(4, 1, 4), (4, 9, 4), (4, 10, 8), (4, 99, 8), (4, 100, 12), (3, 10, 6)]
)
def test_transmit_limit(multiplier: int, members: int, times: int) -> None:
    assert transmit_limit(multiplier, members) == times


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


@pytest.mark.parametrize("config", [LOCAL, LAN, WAN])
def test_presets_are_consistent(config: object) -> None:
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    assert all(math.isfinite(value) and value > 0 for value in values.values())
    assert 2 * values["probe_timeout"] <= values["probe_interval"]
    assert values["gossip_interval"] < values["probe_interval"] < values["push_pull_interval"]
    assert values["join_interval"] < values["join_longest"] <= 10.0
    assert values["suspicion_longest"] >= 1.0 and values["confirmations"] < MAX_ACCUSERS and values["lifeguard"]
    assert values["reconnect_interval"] <= 2 * values["probe_interval"]


def test_presets_are_named_and_frozen() -> None:
    assert PRESETS == {"local": LOCAL, "lan": LAN, "wan": WAN}
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAN.probe_interval = 3.0  # type: ignore[misc]
