"""A daemon for the training process of a framework."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipdp.training import session as sessions
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDaemon]:
    """Runs in a thread meanwhile. Frameworks see no GPU; the environment is restored afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("GOSSIPDP_HOME", str(home))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setattr(sessions, "REPORT_EVERY", 0.0)
    before = dict(os.environ)
    daemon = PumpedDaemon(home, every=2)
    with daemon.running():
        yield daemon
    daemon.server.close()
    os.environ.clear()
    os.environ.update(before)
