"""Campaigns of the whole suite: which tests belong to one, what each cost, and what it saw, told after the last test.

    T2      4 tests    31.0 s    25.2 s of a core  596 cases
    T4      2 tests    41.3 s    60.4 s of a core  seconds until the survivors exchange 1.2 to 3.4

A test belongs to a campaign by `@pytest.mark.campaign("T2")`, and says what it saw by `record_property(name, figure)`:
whole numbers are added up, others shown as a range, words as they are. Both travel with a test's report, so that it is
the same with one process and with several. The first seconds are of the wall clock, summed over the tests; those of a
core count processes that a test started and waited for, too. No fixture stands here.
"""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

from tests.time_limit import pytest_timeout_cancel_timer, pytest_timeout_set_timer  # noqa: F401

pytest_plugins = ["tests.needs"]

# A time limit for each example would fail tests on a busy machine.
settings.register_profile("gossipdp", deadline=None)
settings.load_profile("gossipdp")

# Before anybody imports torch: there is a test for every core already, and what they start takes it from here.
os.environ.setdefault("OMP_NUM_THREADS", "1")

INTERNAL: list[str] = []
"""errors of pytest and of its workers"""
CAMPAIGN, CORE = "campaign", "seconds of a core"
BEGAN = pytest.StashKey[float]()
WIDTH = 110


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "campaign(name): one of the campaigns that docs/campaigns.md lists")


def pytest_internalerror(excrepr: object) -> None:
    INTERNAL.append(str(excrepr))


def pytest_unconfigure() -> None:
    """Repeat the first internal error at the end: those that follow from it have buried it."""
    if INTERNAL:
        sys.stderr.write("\n".join(["the first internal error:", *INTERNAL[0].splitlines()[-12:], ""]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives to the end. Python's collector of garbage looks at it neither now nor in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if mark := item.get_closest_marker(CAMPAIGN):
            item.user_properties.append((CAMPAIGN, mark.args[0]))


# Also for a test that another hook skips.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = spent()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.get_closest_marker(CAMPAIGN):
        item.user_properties.append((CORE, spent() - item.stash[BEGAN]))


def spent() -> float:
    return sum(os.times()[:4])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = (one for of in terminalreporter.stats.values() for one in of if isinstance(one, pytest.TestReport))
    lines = told(reports)
    if lines:
        terminalreporter.section("campaigns")
        for line in lines:
            terminalreporter.line(line)


def told(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line a campaign, or more where its figures do not fit into one."""
    seconds: defaultdict[str, float] = defaultdict(float)
    core: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, set[str]] = defaultdict(set)
    figures: defaultdict[str, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        properties = report.user_properties
        name = next((str(value) for key, value in properties if key == CAMPAIGN), "")
        if not name:
            continue
        seconds[name] += report.duration
        tests[name].add(report.nodeid)
        # The report of the last phase has all that the test recorded.
        for key, value in properties if report.when == "teardown" else ():
            if key == CORE:
                core[name] += float(value)  # type: ignore[arg-type]
            elif key != CAMPAIGN:
                figures[name][key].append(value)
    lines = []
    for name in sorted(tests, key=_in_order):
        count = f"{len(tests[name])} test{'s' * (len(tests[name]) > 1)}"
        line = f"{name:<4} {count:>10} {seconds[name]:8.1f} s {core[name]:8.1f} s of a core "
        indent = " " * len(line)
        for figure in _told(figures[name], core[name]):
            if len(line) + len(figure) > WIDTH and line.strip():
                lines.append(line.rstrip())
                line = indent
            line += f" {figure};"
        lines.append(line.rstrip("; "))
    return lines


def _told(figures: Mapping[str, Sequence[Any]], seconds: float) -> list[str]:
    words = []
    for name, values in figures.items():
        if all(isinstance(value, int) for value in values):
            total = sum(values)
            # What is counted by the million is worth a rate.
            rate = f" ({total / seconds:,.0f} a second)" if name == "events" and seconds else ""
            words.append(f"{total:,} {name}{rate}")
        elif all(isinstance(value, int | float) for value in values):
            low, high = min(values), max(values)
            words.append(f"{name} {low:.3g}" + (f" to {high:.3g}" if f"{high:.3g}" != f"{low:.3g}" else ""))
        else:
            words += [f"{name}: {value}" for value in dict.fromkeys(map(str, values))]
    return words


def _in_order(name: str) -> tuple[int, str]:
    """T2 before T10."""
    return len(name), name
