"""Tests with real daemons and training processes. Helpers are in `running`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from simulations.processes.namespaces.hosts import Lab
from tests.processes.running import Network, running


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts that are two network namespaces."""
    with Lab(2) as made:
        yield made


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[..., Network]]:
    """`network(4)`: hosts of one network, not started yet. They end with the test."""
    with ExitStack() as stack:
        yield lambda count, **options: stack.enter_context(running(tmp_path / "hosts", count, **options))
