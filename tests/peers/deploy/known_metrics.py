"""Every metric that a daemon may show, with its labels, from the code that shows it."""

from __future__ import annotations

import sys
import types

import pytest

from gossipdp.runtime.observability.metric_table import FAMILIES
from gossipdp.runtime.observability.metrics import Metrics
from tests.runtime.observability.metric_samples import fill

TARGET = frozenset({"job", "instance", "network"})
"""labels that Prometheus gives to all that it scrapes from a peer; network is in the example of targets"""


def known_metrics(monkeypatch: pytest.MonkeyPatch) -> dict[str, frozenset[str]]:
    """Name of a series -> its own labels and those of its target, on a host with a GPU."""
    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: types.SimpleNamespace(used=10, total=100),
        nvmlDeviceGetUtilizationRates=lambda index: types.SimpleNamespace(gpu=75),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    metrics = Metrics()
    fill(metrics)
    known = {"up": TARGET}
    for family in metrics.registry.collect():
        for sample in family.samples:
            known[sample.name] = known.get(sample.name, TARGET) | set(sample.labels)
    for family in FAMILIES:  # a family without a sample has its labels only here
        if family.kind != "histogram":
            known.setdefault(f"gossipdp_{family.name}", TARGET | set(family.labels))
    metrics.close()
    return known
