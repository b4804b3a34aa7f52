"""Figures of a running network, from what its daemon answers."""

from __future__ import annotations

from typing import Any

import pytest

from peers.plan.running import figures_of

STATUS: dict[str, Any] = {
    "parameters": 1_000_000,
    "samples_per_second": 64.0,
    "steps": 100,
    "samples": 1600,
    "last_exchange": {"seconds": 2.0, "received_bytes": 400_000},
}
MEMBERS: list[dict[str, Any]] = [
    {"me": True, "state": "alive", "trains": True, "rtt": None, "samples_per_second": 64.0},
    {"state": "alive", "trains": True, "rtt": 0.02, "samples_per_second": 32.0},
    {"state": "alive", "trains": None, "rtt": 0.06, "samples_per_second": 128.0},
    {"state": "alive", "trains": False, "rtt": 0.5, "samples_per_second": None},
    {"state": "failed", "trains": None, "rtt": 0.5, "samples_per_second": 1.0},
]


def test_all_figures_of_a_network_that_trains() -> None:
    found = {name: each.value for name, each in figures_of(STATUS, MEMBERS).items()}
    assert found == {
        "parameters": 1_000_000,
        "step_time": pytest.approx(0.25),
        "hosts": 3,
        "speeds": (1.0, 0.5, 2.0),
        "bandwidth": 200_000.0,
        "latency": pytest.approx(0.02),
    }


def test_figures_that_are_not_known_yet_say_why() -> None:
    found = figures_of({"parameters": 0, "samples_per_second": None, "last_exchange": {}}, MEMBERS[:1])
    assert {name for name, each in found.items() if each.value is None} == set(found) - {"hosts"}
    assert "no model yet" in found["parameters"].how and "two rounds" in found["step_time"].how
    assert "no exchange" in found["bandwidth"].how and "equal" in found["speeds"].how


def test_one_unknown_rate_leaves_all_speeds_unknown() -> None:
    rows = [*MEMBERS[:2], MEMBERS[2] | {"samples_per_second": None}]
    assert figures_of(STATUS, rows)["speeds"].value is None


def test_a_host_that_hardly_moves_counts_as_the_slowest_that_a_plan_takes() -> None:
    rows = [MEMBERS[0], MEMBERS[1] | {"samples_per_second": 0.001}]
    assert figures_of(STATUS, rows)["speeds"].value == (1.0, 1.0 / 16.0)


def test_speeds_that_differ_by_less_than_daemons_follow_are_equal() -> None:
    rows = [MEMBERS[0], MEMBERS[1] | {"samples_per_second": 60.0}]
    assert figures_of(STATUS, rows)["speeds"].value == (1.0, 1.0)
