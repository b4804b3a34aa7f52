"""What every test of the commands and of the processes that they start needs."""

import logging
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    """Commands that run in the test's process configure logging. A later test would log to a closed stream."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("gossipdp").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """Restore SIGHUP, which nohup ignores."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
