"""Lifeguard against plain SWIM at reduced size (safety.md, T6)."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest

from simulations.scenarios import detection
from simulations.scenarios.detection import percentile, run

SMALL = {"peers": 48, "starved": 6, "killed": 4, "seconds": 120.0}


@pytest.fixture(scope="module")
def outcomes():
    return {lifeguard: [run(seed, lifeguard=lifeguard, **SMALL) for seed in (1, 2)] for lifeguard in (True, False)}


def test_lifeguard_fails_hardly_any_healthy_member_where_plain_swim_fails_many(outcomes):
    ours, plain = (sum(outcome.false_failures for outcome in outcomes[which]) for which in (True, False))
    assert plain >= 10 and 10 * ours <= plain, (ours, plain)
    assert all(outcome.blocked > 0.5 for which in outcomes.values() for outcome in which)


def test_the_dead_are_found_by_everybody_in_time_by_both(outcomes):
    for which in outcomes.values():
        times = [time for outcome in which for time in outcome.times]
        assert len(times) == 2 * 4 * (48 - 6 - 4) and min(times) > 2.0
        assert median(times) <= 15.0 and percentile(times, 0.99) <= 60.0 and max(times) < math.inf


def test_both_protocols_see_the_same_deaths_and_a_seed_always_comes_out_the_same(outcomes):
    again = run(1, lifeguard=True, **SMALL)
    first = outcomes[True][0]
    assert replace(again, wall=0.0) == replace(first, wall=0.0)
    assert replace(outcomes[True][1], wall=0.0) != replace(first, wall=0.0)


def test_where_nobody_is_starved_neither_wrongs_anybody():
    for lifeguard in (True, False):
        outcome = run(3, 24, lifeguard, "lan", starved=1, killed=2, seconds=30.0, longest=1.0)
        assert outcome.false_failures == 0 and len(outcome.times) == 2 * 21


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_percentile_is_one_of_the_values(share, value):
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_table_has_a_line_a_run_and_the_verdict(capsys):
    assert (
        detection.main(["--seeds", "1", "--peers", "16", "--preset", "local", "--starved", "2", "--killed", "1"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[-1].startswith("false failures: ")
    assert [line.split()[0] for line in lines[1:5]] == ["lifeguard", "plain", "lifeguard", "plain"]
