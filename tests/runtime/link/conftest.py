"""Fixtures of the link tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipdp.runtime import link as links


@pytest.fixture
def server(tmp_path: Path) -> Iterator[links.LinkServer]:
    server = links.LinkServer(tmp_path)
    yield server
    server.close()
