"""Waits that end when nothing moves, and the clock that stands while a process waits for a CPU."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.processes import progress
from simulations.processes.progress import delay, undelayed, until

ROOT = Path(__file__).parents[3]
STATISTICS = Path("/proc/self/schedstat").exists()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second."""
    seconds = map(float, itertools.count())
    monkeypatch.setattr(progress, "undelayed", lambda: next(seconds))
    monkeypatch.setattr(progress, "LOOK", 0.0)


@pytest.fixture
def crowd() -> Iterator[None]:
    """More processes than CPUs, none of which ever waits for anything else."""
    made = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(8 * (os.cpu_count() or 1))]
    yield
    for process in made:
        process.kill()
        process.wait()


class Host:
    def __init__(self, name: str, ended: str = "") -> None:
        self.name, self._ended = name, ended

    def ends(self) -> str:
        return self._ended

    def last_words(self) -> str:
        return f"the log of {self.name}"


def test_condition_that_is_true_gives_its_result() -> None:
    assert until("it is there", lambda: [1]) == [1]


@pytest.mark.usefixtures("clock")
def test_nothing_moves__fails_and_names_what_it_waited_for_and_how_far_it_came() -> None:
    told = [Host("h0"), Host("h1", ", daemon ended with 9")]
    with pytest.raises(AssertionError) as failed:
        until("the model comes", lambda: 0, told, moves=lambda: 7)
    said = str(failed.value)
    assert said.startswith("the model comes: 60 s without progress, ") and "it came to 7; the last look gave 0" in said
    assert said.index("--- h1, daemon ended with 9\nthe log of h1") < said.index("--- h0\nthe log of h0")


@pytest.mark.usefixtures("clock")
def test_count_that_moves_keeps_the_wait_alive__one_that_comes_again_does_not() -> None:
    steps = itertools.count()
    assert until("it counts to a thousand", lambda: next(steps) >= 1000, moves=lambda: next(steps)) is True
    flips = itertools.cycle(["up", "down"])
    with pytest.raises(AssertionError):
        until("it settles", lambda: False, moves=lambda: next(flips))


def test_process_that_hangs__fails_in_time() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            with pytest.raises(AssertionError, match="it ends: 1 s without progress"):
                until("it ends", lambda: process.poll() is not None, seconds=1.0)
        finally:
            process.kill()


@pytest.mark.skipif(not STATISTICS, reason="the kernel keeps no statistics of its scheduler")
@pytest.mark.usefixtures("crowd")
def test_more_processes_than_cpus__the_clock_is_slow() -> None:
    begun, since = time.monotonic(), undelayed()
    until("three seconds are over", lambda: time.monotonic() > begun + 3.0)
    # Each gets an eighth of a CPU at most.
    assert undelayed() - since < 0.6 * (time.monotonic() - begun)


@pytest.mark.skipif(not STATISTICS, reason="the kernel keeps no statistics of its scheduler")
@pytest.mark.usefixtures("crowd")
def test_thread_knows_how_long_it_waited_for_a_cpu() -> None:
    before = delay()
    until("it has waited", lambda: delay() > before + 0.01)


HANGS = """
import threading
import pytest

def test_hangs():
    threading.Event().wait()

@pytest.mark.long
def test_long_one_may_take_ten_times_as_long():
    threading.Event().wait(3.0)
"""


def test_test_that_blocks_for_ever__fails_by_the_limit_without_progress(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text("from tests.time_limit import *\n")
    argv = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-v"]
    argv += ["--timeout", "1", "-p", "no:cacheprovider", str(tmp_path)]
    told = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "1 failed, 1 passed" in told and "Timeout (>1.0s) from pytest-timeout" in told, told
