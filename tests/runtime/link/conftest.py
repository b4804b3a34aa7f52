"""Fixtures of the link tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipdp.runtime import link as links


@pytest.fixture
def server(tmp_path: Path) -> Iterator[links.LinkServer]:
    server = links.LinkServer(tmp_path)
    yield server
    server.close()
