"""The script of make mutants: what it counts, and the interval it states."""

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "mutants.py"))


def test_a_sample_is_stated_with_its_interval() -> None:
    outcomes = ["killed"] * 80 + ["timeout"] * 5 + ["survived"] * 12 + ["no tests"] * 3
    assert SCRIPT["summary"]("package", 900, outcomes) == (
        "package: 100 of 900 mutants: killed 80, survived 12, timed out 5, not covered 3; share 85.0% (76.7% to 90.7%)"
    )


def test_all_mutants_need_no_interval() -> None:
    assert SCRIPT["summary"]("a/package", 2, ["killed", "survived"]).endswith("share 50.0%")


def test_a_run_that_ends_otherwise_than_by_passing_kills() -> None:
    statuses = ["killed", "segfault", "suspicious", "timeout", "survived", "no tests"]
    assert [SCRIPT["outcome"](status) for status in statuses] == ["killed"] * 3 + statuses[3:]


@pytest.mark.parametrize(("hits", "tried", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)])
def test_interval_stays_within_zero_and_one(hits: int, tried: int, low: float, high: float) -> None:
    assert SCRIPT["interval"](hits, tried) == pytest.approx((low, high), abs=1e-4)


def test_a_sample_is_the_same_every_time_and_holds_no_mutant_twice() -> None:
    names = [str(number) for number in range(50)]
    drawn = SCRIPT["draw"](names, 20, 0)
    assert drawn == SCRIPT["draw"](names, 20, 0) != SCRIPT["draw"](names, 20, 1) and len(set(drawn)) == 20
    assert sorted(SCRIPT["draw"](names, 0, 0)) == sorted(SCRIPT["draw"](names, 99, 0)) == sorted(names)


def test_the_settings_name_tests_that_exist() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named = [word.rpartition("=")[2] for word in settings["pytest_add_cli_args_test_selection"] if "tests/" in word]
    for file, _, test in (word.partition("::") for word in named):
        assert (ROOT / file).exists() and (not test or f"def {test}(" in (ROOT / file).read_text())
