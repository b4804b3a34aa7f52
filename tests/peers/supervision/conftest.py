"""Fixtures of the tests of the supervisor."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.peers.supervision.supervised import Running


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[type[Running]]:
    started: list[Running] = []

    def start(daemon: str, training: str | Sequence[str] | None, **options: Any) -> Running:
        started.append(Running(tmp_path, daemon, training, **options))
        return started[-1]

    yield start  # type: ignore[misc]
    for running in started:
        running.process.kill()
        running.process.wait()
        for process in running.seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert running.process.stdout is not None
        running.process.stdout.close()
        running._log.close()
