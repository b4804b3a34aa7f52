"""Alert rules and dashboard name only metrics, labels and values that a daemon shows."""

import re
import sys
import types
from collections.abc import Iterator

import pytest

from gossipdp.error_codes import CODES
from gossipdp.protocol.wire.messages import State
from gossipdp.runtime.observability.health import STATES
from gossipdp.runtime.observability.metric_table import FAMILIES
from gossipdp.runtime.observability.metrics import Metrics
from tests.peers.deploy.queries import RULE_TESTS, Selector, grouping, rules, selectors, shown, variables
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


ALERTS = {name: rule["expr"] for name, rule in rules().items()}
PANELS = {title: " or ".join(expressions) for title, expressions in shown().items()}
VALUES = {
    ("gossipdp_verdict", "state"): {kind.name for kind in STATES},
    ("gossipdp_members", "state"): {state.name.lower() for state in State},
    ("gossipdp_member_changes_total", "state"): {state.name.lower() for state in State},
    ("gossipdp_notices_total", "code"): set(CODES),
    ("gossipdp_resyncs_total", "reason"): {"apart", "lag"},
    ("gossipdp_snapshots_total", "result"): {"ok", "session", "nan"},
}
"""metric and label -> the values that rules may name"""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, frozenset[str]]:
    return known_metrics(monkeypatch)


@pytest.mark.parametrize("name", [*ALERTS, *PANELS, *variables()])
def test_metrics_and_labels_exist(known: dict[str, frozenset[str]], name: str) -> None:
    expression = {**ALERTS, **PANELS, **variables()}[name]
    if name in variables():
        expression, label = re.fullmatch(r"label_values\((.*), (\w+)\)", expression).groups()  # type: ignore[union-attr]
        assert label in TARGET and label == name
    found = list(selectors(expression))
    assert found
    for metric, labels in found:
        assert metric in known
        assert {label for label, _ in labels} <= known[metric]
    assert grouping(expression) <= frozenset().union(*(known[each.metric] for each in found))


def matched() -> Iterator[tuple[str, str, str, str]]:
    for name, expression in {**ALERTS, **PANELS}.items():
        for metric, labels in selectors(expression):
            yield from ((name, metric, label, value) for label, value in labels if (metric, label) in VALUES)


def test_values_of_labels_exist() -> None:
    found = list(matched())
    assert {(metric, label) for _, metric, label, _ in found} == set(VALUES)
    for name, metric, label, value in found:
        assert set(value.split("|")) <= VALUES[metric, label], name


def test_tests_of_the_rules_give_series_that_exist(known: dict[str, frozenset[str]]) -> None:
    lines = [line for file in RULE_TESTS for line in re.findall(r"series: '([^']*)'", file.read_text("utf-8"))]
    given = [each for line in lines for each in selectors(line)]
    assert len(given) == len(lines) > 80
    for metric, labels in given:
        assert {label for label, _ in labels} <= known[metric]


def test_expressions_are_read_whole() -> None:
    assert list(selectors('max by (job, gpu) (rate(a_total{b="x", c=~"y|z"}[5m]) / d) > 1e3 unless e offset 1h')) == [
        Selector("a_total", (("b", "x"), ("c", "y|z"))),
        Selector("d", ()),
        Selector("e", ()),
    ]
    assert grouping("sum by (a, b) (x) and ignoring (c) y and ignoring () z") == {"a", "b", "c"}
