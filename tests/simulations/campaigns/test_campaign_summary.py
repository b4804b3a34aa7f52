"""The summary of campaigns after the last test, with one process and with several."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[3]
CONFTEST = ROOT / "tests" / "conftest.py"
TESTS = """
import pytest

@pytest.mark.campaign("T10")
@pytest.mark.parametrize("seconds", [1.5, 0.25])
def test_shown(seconds, record_property):
    record_property("seconds until back", seconds)
    record_property("verdict", "fine")

@pytest.mark.campaign("T2")
@pytest.mark.parametrize("events", [1000, 2000])
def test_added(events, record_property):
    sum(range(1_000_000))
    record_property("events", events)

@pytest.mark.campaign("T2")
def test_that_fails():
    assert False

def test_of_none(record_property):
    record_property("events", 5)
"""


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """The modules of tests and simulations are found in another folder, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.long)], ids=["one process", "two"]
)
def test_line_a_campaign_with_its_tests_seconds_and_figures(pytester, processes):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-q", "--strict-markers", "-p", "no:cacheprovider", *processes)
    result.assert_outcomes(passed=5, failed=1)
    lines = result.stdout.lines
    second, tenth = (next(line.split() for line in lines if line.startswith(name)) for name in ("T2 ", "T10 "))
    assert second[1:3] == ["3", "tests"] and second[4] == "s" and second[6:10] == ["s", "of", "a", "core"]
    assert float(second[5]) >= 0.0 and " ".join(second[10:12]) == "3,000 events"
    assert " ".join(tenth[10:]) == "seconds until back 0.25 to 1.5; verdict: fine"
    assert [line.split()[0] for line in lines if line.startswith("T")] == ["T2", "T10"]


def test_suite_without_a_campaign_prints_no_summary(pytester):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile("def test_of_none(): pass")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    assert not any("campaigns" in line for line in result.stdout.lines)
