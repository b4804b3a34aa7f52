"""Every event and total reaches Prometheus under a documented name."""

import math

import pytest
from prometheus_client import generate_latest

from gossipdp.protocol import events
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime.observability.health import STATES
from gossipdp.runtime.observability.metrics import Metrics
from tests.runtime.observability.metric_samples import EVENTS, PARTNER, Time, exchange, outer_step, status, value

# -- events ----------------------------------------------------------------------------------------------------


def test_examples_cover_every_event() -> None:
    declared = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    assert {type(event) for event in EVENTS} == set(declared) - {events.Event}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_counted_and_changes_nothing_else_than_series(metrics: Metrics, event: events.Event) -> None:
    metrics.observe(event)
    assert value(metrics, "events_total", event=type(event).__name__) == 1.0
    assert generate_latest(metrics.registry)


def test_exchange_done_is_counted_by_result_with_its_blocks_and_time(metrics: Metrics) -> None:
    metrics.observe(exchange())
    metrics.observe(exchange(result="lost", chunks=0, blocks=0, escalated=0, clipped=0, distance=math.nan))
    assert value(metrics, "exchanges_total", result="done") == 1
    assert value(metrics, "exchanges_total", result="lost") == 1
    assert value(metrics, "blocks_total") == 160
    assert value(metrics, "escalated_blocks_total") == 12
    assert value(metrics, "escalation_bytes_total") == 180
    assert value(metrics, "chunks_mixed_total") == 16
    assert value(metrics, "chunks_clipped_total") == 1
    assert value(metrics, "exchange_duration_seconds_count") == 2
    assert value(metrics, "exchange_duration_seconds_bucket", le="1.0") == 2
    assert value(metrics, "consensus_distance") == 0.01, "an exchange that mixed nothing says nothing of distance"


@pytest.mark.parametrize(("alive", "share"), [(2, 0.5), (4, math.sqrt(3 / 8)), (10_000, math.sqrt(0.5))])
def test_consensus_distance_follows_from_a_pair_and_the_number_of_members(
    metrics: Metrics, alive: int, share: float
) -> None:
    """E||a_i - a_j||^2 = 2N/(N-1) CD^2 (algorithms, section 7)."""
    metrics.set_members({"alive": alive})
    metrics.observe(exchange(distance=1.0))
    assert value(metrics, "consensus_distance") == pytest.approx(share, rel=1e-3)


def test_staleness_counts_rounds_since_an_exchange_mixed(metrics: Metrics) -> None:
    seen = []
    for round in (1, 2, 3):
        metrics.observe(outer_step(round))
        seen.append(value(metrics, "staleness_rounds"))
    metrics.observe(exchange(chunks=0))
    seen.append(value(metrics, "staleness_rounds"))
    metrics.observe(exchange())
    seen.append(value(metrics, "staleness_rounds"))
    metrics.observe(outer_step(4))
    seen.append(value(metrics, "staleness_rounds"))
    assert seen == [1, 2, 3, 3, 0, 1]


def test_lateness_is_the_share_of_a_round_before_mixing(metrics: Metrics, clock: Time) -> None:
    metrics.observe(outer_step(1))
    metrics.observe(exchange())
    assert math.isnan(value(metrics, "landing_lateness") or 0.0), "one outer step does not tell how long a round is"
    clock.now += 10
    metrics.observe(outer_step(2))
    clock.now += 2.5
    metrics.observe(exchange())
    assert value(metrics, "landing_lateness") == pytest.approx(0.25)


def test_coverage_counts_epochs_and_their_share_and_duplicates_only_grow(metrics: Metrics) -> None:
    metrics.observe(events.DataCovered("data", 3, 42, 100, 4, 2, 5))
    metrics.observe(events.DataCovered("data", 4, 0, 100, 4, 0, 6))
    assert value(metrics, "data_epochs", data="data") == 4.0
    assert value(metrics, "data_open_leases", data="data") == 0.0
    assert value(metrics, "data_duplicate_blocks_total", data="data") == 6.0


def test_rounds_are_counted_as_they_are_made__whatever_their_numbers(metrics: Metrics) -> None:
    for round in (40, 41, 7, 90):  # a re-sync, and another
        metrics.observe(outer_step(round))
    assert value(metrics, "rounds_total") == 4 and value(metrics, "round") == 90


def test_update_reads_states_and_totals_of_the_peer(metrics: Metrics) -> None:
    metrics.update(status(), queued=3)  # type: ignore[arg-type]
    metrics.update(status(), queued=3)  # type: ignore[arg-type]
    peer = short(PARTNER)
    expected = {
        ("members", "state", "alive"): 4,
        ("members", "state", "left"): 2,
        ("handshakes_total", "result", "GD-201"): 1,
        ("messages_dropped_total", "reason", "unverified"): 4,
        ("peer_rtt_seconds", "peer", peer): 0.03,
    }
    for (name, label, of), wanted in expected.items():
        assert value(metrics, name, **{label: of}) == wanted
    assert value(metrics, "sent_bytes_total", peer=peer, lane="data") == 1000
    assert value(metrics, "received_bytes_total", peer=peer, lane="control") == 70
    plain = {"round": 3, "clock_steps": 150, "steps_total": 150, "samples_total": 1200, "loss": 1.5, "links": 1}
    plain |= {"training_stall_seconds_total": 0.25, "compression_ratio": 8.0, "queue_jobs": 3, "consensus_ratio": 1.25}
    plain |= {"network_samples_per_second": 160.0, "eval_loss": 1.25}
    assert {name: value(metrics, name) for name in plain} == plain


def test_total_that_fell__counted_on_from_zero(metrics: Metrics) -> None:
    for stall in (1.0, 1.5, 0.25, 0.5):
        metrics.set_training(steps=1, samples=1, loss=math.nan, stall=stall, on=True)
    assert value(metrics, "training_stall_seconds_total") == pytest.approx(2.0)


def test_gauge_without_a_value_is_nan(metrics: Metrics) -> None:
    for name in ("loss", "eval_loss", "consensus_distance", "queue_bytes", "checkpoint_last_success_timestamp_seconds"):
        assert math.isnan(value(metrics, name) or 0.0)


def test_time_of_a_checkpoint_found_at_the_start_is_shown_until_another_is_saved(metrics: Metrics) -> None:
    shown = []
    for found in (math.nan, 1.7e9, None):
        metrics.checkpoint_saved(found)
        shown.append(value(metrics, "checkpoint_last_success_timestamp_seconds") or 0.0)
    assert math.isnan(shown[0]) and shown[1] == 1.7e9 < shown[2]


def test_the_verdict_is_the_one_state_that_is_1(metrics: Metrics) -> None:
    assert value(metrics, "verdict", state="healthy") is None, "nothing is judged yet"
    for state in ("joining", "degraded", "healthy"):
        metrics.set_verdict(state)
        shown = {kind.name: value(metrics, "verdict", state=kind.name) for kind in STATES}
        assert shown == {kind.name: float(kind.name == state) for kind in STATES}


def test_checkpoints_that_are_off_are_never_old(metrics: Metrics) -> None:
    metrics.set_checkpoint_every(math.inf)
    assert "gossipdp_checkpoint_every_seconds +Inf" in generate_latest(metrics.registry).decode()
