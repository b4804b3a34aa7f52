"""Daemons that share the reading of data."""

from collections.abc import Iterator

import pytest

from tests.training.data_daemons import DataDaemons


@pytest.fixture
def daemons() -> Iterator[DataDaemons]:
    yield DataDaemons()
