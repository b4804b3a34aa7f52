"""Metrics with a clock that the test moves."""

from collections.abc import Iterator

import pytest

from gossipdp.runtime.observability.metrics import Metrics
from tests.runtime.observability.metric_samples import Time


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def metrics(clock: Time) -> Iterator[Metrics]:
    metrics = Metrics("0.1.0", clock)
    yield metrics
    metrics.close()
