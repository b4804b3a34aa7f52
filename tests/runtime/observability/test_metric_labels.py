"""Remotes cannot multiply the series of a metric."""

from collections import Counter
from typing import Any

import prometheus_client
import pytest

from gossipdp.protocol import events
from gossipdp.protocol.wire.messages import Lane, State, short
from gossipdp.runtime.observability.metrics import MAX_PEERS, MAX_REASONS, OTHER, Metrics
from tests.runtime.observability.metric_samples import PARTNER, fill, member, number, value


def label_values(metrics: Metrics, family: str, label: str) -> Counter[str]:
    (found,) = (f for f in metrics.registry.collect() if f.name == f"gossipdp_{family}")
    return Counter(sample.labels[label] for sample in found.samples)


def test_peers_past_the_cap_share_a_label_and_no_byte_is_lost(metrics: Metrics) -> None:
    totals = {(number(n), Lane.DATA): 10 for n in range(1000)}
    metrics.set_traffic(totals, {})
    metrics.set_traffic(totals, {})
    for n in range(1000):
        metrics.set_rtt(number(n), 0.1)
    assert len(label_values(metrics, "sent_bytes", "peer")) == MAX_PEERS + 1
    assert value(metrics, "sent_bytes_total", peer=OTHER, lane="data") == 10 * (1000 - MAX_PEERS)
    assert len(label_values(metrics, "peer_rtt_seconds", "peer")) == MAX_PEERS, "a mean over other peers means nothing"


def test_peer_gone_makes_room_when_another_needs_it(metrics: Metrics) -> None:
    for n in range(MAX_PEERS):
        metrics.set_traffic({(number(n), Lane.DATA): 10}, {})
    metrics.set_rtt(number(5), 0.1)
    metrics.observe(events.MemberChanged(member(number(5), State.FAILED), State.SUSPECT))
    assert value(metrics, "peer_rtt_seconds", peer=short(number(5))) is None
    assert value(metrics, "sent_bytes_total", peer=short(number(5)), lane="data") == 10
    metrics.set_traffic({(number(99), Lane.DATA): 7, (number(100), Lane.DATA): 9}, {})
    assert value(metrics, "sent_bytes_total", peer=short(number(5)), lane="data") is None
    assert value(metrics, "sent_bytes_total", peer=short(number(99)), lane="data") == 7
    assert value(metrics, "sent_bytes_total", peer=OTHER, lane="data") == 9


def test_peer_gone_before_it_was_measured_costs_nothing(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.21.1 prometheus-client raises for a child that is not there."""
    taken = prometheus_client.Gauge.remove

    def remove(family: Any, *labels: str) -> None:
        if labels not in family._metrics:
            raise KeyError(labels)
        taken(family, *labels)

    for kind in (prometheus_client.Counter, prometheus_client.Gauge):
        monkeypatch.setattr(kind, "remove", remove)
    for n in range(MAX_PEERS):
        metrics.set_traffic({(number(n), Lane.DATA): 10}, {})
    metrics.observe(events.MemberChanged(member(number(5), State.FAILED), State.SUSPECT))
    metrics.set_traffic({(number(99), Lane.DATA): 7}, {})
    assert value(metrics, "sent_bytes_total", peer=short(number(5)), lane="data") is None
    assert value(metrics, "sent_bytes_total", peer=short(number(99)), lane="data") == 7


def test_peer_that_came_back_keeps_its_label(metrics: Metrics) -> None:
    for n in range(MAX_PEERS):
        metrics.set_traffic({(number(n), Lane.DATA): 10}, {})
    metrics.observe(events.MemberChanged(member(number(5), State.FAILED), State.SUSPECT))
    metrics.observe(events.MemberChanged(member(number(5), State.ALIVE), State.FAILED))
    metrics.set_traffic({(number(99), Lane.DATA): 7}, {})
    assert value(metrics, "sent_bytes_total", peer=short(number(5)), lane="data") == 10
    assert value(metrics, "sent_bytes_total", peer=OTHER, lane="data") == 7


def test_reasons_that_a_peer_invents_share_a_label(metrics: Metrics) -> None:
    for n in range(500):
        metrics.observe(events.MessageDropped(PARTNER, f"reason {n}"))
    reasons = label_values(metrics, "messages_dropped", "reason")
    assert len(reasons) == MAX_REASONS + 1
    assert value(metrics, "messages_dropped_total", reason=OTHER) == 500 - MAX_REASONS


def test_strikes_are_counted_by_reason__and_members_set_aside_shown(metrics: Metrics) -> None:
    fill(metrics)
    assert value(metrics, "strikes_total", reason="nan") == 1 and value(metrics, "members_set_aside") == 1
