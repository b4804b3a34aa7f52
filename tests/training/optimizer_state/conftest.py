"""Daemons that keep moments."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.moments_daemon import MomentsDaemon


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., MomentsDaemon]]:
    with contextlib.ExitStack() as stack:

        def start(name: str = "a", **options: Any) -> MomentsDaemon:
            daemon = MomentsDaemon(tmp_path / name, **options)
            stack.callback(daemon.server.close)
            return daemon

        yield start
