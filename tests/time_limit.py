"""The time limit of a test: seconds of the clock `undelayed` without progress, so a busy machine breaks none.

A test makes progress when it begins, and whenever `until` sees something move. So a test may block without a limit of
its own: on a thread, a process or a socket. pytest-timeout reads the limit and fails the test.
"""

import signal

import pytest
import pytest_timeout

from simulations.processes.progress import SAMPLE, stalled

LONG = 10
"""factor for tests with the mark `long`, which may compute for minutes"""


_watched: pytest.Item | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    global _watched
    limit = settings.timeout * (LONG if item.get_closest_marker("long") else 1)

    def look(*_: object) -> None:
        __tracebackhide__ = True
        if _watched is not item:
            return  # the signal arrived just before the test ended
        if stalled() > limit:
            pytest_timeout.timeout_sigalrm(item, settings)
        # Once each time. A slow look on a busy machine would be interrupted by the next one, and both would count the
        # same seconds.
        signal.setitimer(signal.ITIMER_REAL, SAMPLE)

    _watched = item
    stalled(moved=True)
    signal.signal(signal.SIGALRM, look)
    # Not only at the end: a process that has ended tells no longer how long it waited for a CPU.
    signal.setitimer(signal.ITIMER_REAL, SAMPLE)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    # The handler stays: Python reports a signal that arrived just before as an error if there is none.
    global _watched
    _watched = None
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True
