"""A folder for kept answers."""

from __future__ import annotations

import pytest


@pytest.fixture
def played(tmp_path):
    folder = tmp_path / "plays"
    folder.mkdir()
    return folder
