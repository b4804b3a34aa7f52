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


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    limit = settings.timeout * (LONG if item.get_closest_marker("long") else 1)

    def look(*_: object) -> None:
        __tracebackhide__ = True
        if stalled() > limit:
            signal.setitimer(signal.ITIMER_REAL, 0)  # or it would interrupt the report of this failure, too
            pytest_timeout.timeout_sigalrm(item, settings)

    stalled(moved=True)
    signal.signal(signal.SIGALRM, look)
    # Not only at the end: a process that has ended tells no longer how long it waited for a CPU.
    signal.setitimer(signal.ITIMER_REAL, SAMPLE, SAMPLE)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    # The handler stays: Python reports a signal that arrived just before as an error if there is none.
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True
