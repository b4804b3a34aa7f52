"""A folder for kept answers."""

import pytest


@pytest.fixture
def played(tmp_path):
    folder = tmp_path / "plays"
    folder.mkdir()
    return folder
