"""Every event and total reaches Prometheus under a documented name. Remotes cannot multiply series."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gossipdp.protocol import events
from gossipdp.protocol.epidemic import events as epidemic_events
from gossipdp.protocol.wire.epidemic_messages import Rumour
from gossipdp.protocol.wire.messages import Lane, Member, State, short
from gossipdp.runtime.network.events import LinkStatus, TransportCounters
from gossipdp.runtime.observability.metrics import MAX_REASONS, Metrics
from gossipdp.runtime.observability.peer_labels import MAX_PEERS, OTHER

PEER, PARTNER = bytes([1]) * 32, bytes([2]) * 32
RUMOUR = Rumour(PARTNER, 1, 7, 0, 0.25, 700, 400, 7, 1, bytes(32), bytes(64))


def number(n: int) -> bytes:
    return n.to_bytes(4, "big") + bytes(28)


def member(peer: bytes = PARTNER, state: State = State.ALIVE) -> Member:
    return Member(peer, "host", "10.0.0.2:4710", 1, 0, state)


def exchange(**changed: Any) -> events.ExchangeEnded:
    usual = events.ExchangeEnded(
        PARTNER, 7, True, "done", "modulo4", chunks=16, of=16, distance=0.02, clipped=1, blocks=160, escalated=12,
        escalation_bytes=90, sent=500, received=600, duration=0.7,
    )  # fmt: skip
    return dataclasses.replace(usual, **changed)


def outer_step(number: int) -> events.RoundDone:
    return events.RoundDone(round=number, clock=50 * number, pseudo_gradient=0.1, movement=0.08, lr=0.7, momentum=0.8)


EVENTS: list[events.Event] = [
    events.MemberChanged(member(), None),
    events.Joined(PARTNER),
    events.StateReady("received", 1200),
    events.StateRenewed(),
    events.TookOver(clock=875, steps=405, before=0),
    events.SessionOpened(1),
    events.SessionRefused("GD-301", "a parameter differs"),
    events.Pace(50),
    events.SlotSealed(3, (0, 1)),
    events.SnapshotTaken(4),
    events.SnapshotTaken(5, "nan"),
    outer_step(3),
    events.ExchangeStarted(PARTNER, 7, True, "modulo4"),
    exchange(),
    events.OfferRefused(PARTNER, "busy"),
    events.ChunksInDoubt(PARTNER, 2),
    events.UpdateRefused(PARTNER, "nan"),
    events.Struck(PARTNER, "nan", 3, 60.0),
    events.MessageDropped(PARTNER, "malformed"),
    events.TransferProgress(PARTNER, 3, 12),
    events.MomentsProgress(PARTNER, 3, 12),
    events.StateJudged(PARTNER, b"w" * 32, True, 0.1, 0.5),
    events.StateJudged(PARTNER, b"", True, math.nan, math.nan),
    events.RoundSettled(7),
    events.CheckpointAhead(500, 20, 300),
    events.ResyncBegan("apart", 3, 5),
    events.ResyncEnded("apart", PARTNER, True, 4.0),
    events.DataKnown(bytes(16)),
    events.DataCovered("data", 3, 42, 100, 4, 2, 5),
    events.Left(),
    events.Notice("GD-401", "no partner in 60 s"),
    epidemic_events.RumourReceived(bytes(32), RUMOUR, (b"payload",)),
    epidemic_events.RumourVoided(PARTNER, 7, ((RUMOUR, ()),)),
    epidemic_events.EpochClosed(7, bytes(16), 4, 1600),
    events.EpochSettled(7, bytes(16), 4, 1600),
    epidemic_events.EpochGathered(7, ((RUMOUR, ()),)),
    events.EpochJudged(7, 5, 4, 1e-3),
    events.EpochDiverged(7, 1, 5),
    events.IncrementPublished(900, 0.25, 1.0),
    events.IncrementApplied(PARTNER, 900, 0.25, 2, 1e-3, "topk128"),
    events.EpochFingerprinted(7, 12),
]

DOCUMENTED = {
    "build_info", "members", "round", "steps_total", "samples_total", "loss", "exchange_duration_seconds",
    "exchanges_total", "sent_bytes_total", "received_bytes_total", "compression_ratio", "consensus_distance",
    "staleness_rounds", "landing_lateness", "lost_steps_total", "chunks_in_doubt_total", "updates_refused_total",
    "handshakes_total", "queue_bytes", "peer_rtt_seconds", "training_stall_seconds_total",
    "checkpoint_last_success_timestamp_seconds", "escalated_blocks_total", "blocks_total",
}  # fmt: skip


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def metrics(clock: Time) -> Iterator[Metrics]:
    metrics = Metrics("0.1.0", clock)
    yield metrics
    metrics.close()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gossipdp_{name}", labels)


def fill(metrics: Metrics) -> None:
    for event in EVENTS:
        metrics.observe(event)
    metrics.update(status(), queued=3)  # type: ignore[arg-type]
    metrics.set_queues(bytes=4096)
    metrics.count_lost_steps(5)
    metrics.checkpoint_saved(1.7e9)


def status() -> types.SimpleNamespace:
    """The node's Status as far as metrics read it."""
    counters = TransportCounters()
    counters.count_sent(PARTNER, Lane.DATA, 1000)
    counters.count_received(PARTNER, Lane.CONTROL, 70)
    counters.handshakes.update({"ok": 2, "GD-201": 1})
    counters.drops.update({"unverified": 4})
    link = LinkStatus(PARTNER, "10.0.0.2:4710", False, 1, 0.1, 9.0, 6)
    return types.SimpleNamespace(
        peer=types.SimpleNamespace(
            rounds=types.SimpleNamespace(rounds=3),
            clock=150,
            pacing=types.SimpleNamespace(ratio=1.25),
            strikes=types.SimpleNamespace(aside=lambda now: [PARTNER]),
            membership=types.SimpleNamespace(rtt=lambda peer: 0.03 if peer == PARTNER else None),
        ),
        transport=types.SimpleNamespace(counters=counters, links=lambda: [link]),
        counts=lambda: {"alive": 4, "suspect": 1, "failed": 0, "left": 2},
        steps=150,
        samples=1200,
        loss=1.5,
        stall_seconds=0.25,
        training=True,
        exchanged_bytes=500,
        exchanged_parameters=1000.0,
    )


# -- events ----------------------------------------------------------------------------------------------------


def test_examples_cover_every_event() -> None:
    kinds = [*vars(events).values(), *vars(epidemic_events).values()]
    declared = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, events.Event)]
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


# -- totals ----------------------------------------------------------------------------------------------------


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
    assert {name: value(metrics, name) for name in plain} == plain


def test_total_that_fell__counted_on_from_zero(metrics: Metrics) -> None:
    for stall in (1.0, 1.5, 0.25, 0.5):
        metrics.set_training(steps=1, samples=1, loss=math.nan, stall=stall, on=True)
    assert value(metrics, "training_stall_seconds_total") == pytest.approx(2.0)


def test_gauge_without_a_value_is_nan(metrics: Metrics) -> None:
    for name in ("loss", "consensus_distance", "queue_bytes", "checkpoint_last_success_timestamp_seconds"):
        assert math.isnan(value(metrics, name) or 0.0)


def test_time_of_a_checkpoint_found_at_the_start_is_shown_until_another_is_saved(metrics: Metrics) -> None:
    shown = []
    for found in (math.nan, 1.7e9, None):
        metrics.checkpoint_saved(found)
        shown.append(value(metrics, "checkpoint_last_success_timestamp_seconds") or 0.0)
    assert math.isnan(shown[0]) and shown[1] == 1.7e9 < shown[2]


# -- labels ----------------------------------------------------------------------------------------------------


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


# -- exposition ------------------------------------------------------------------------------------------------


def test_documented_families_exist_and_are_at_most_sixty(metrics: Metrics) -> None:
    fill(metrics)
    text = generate_latest(metrics.registry).decode()
    families = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert {f"gossipdp_{name}" for name in DOCUMENTED} <= set(families)
    # Three more where there are graphics processors; those of the process are not gossipdp's.
    assert len(families) == len(set(families))
    assert len([name for name in families if name.startswith("gossipdp_")]) <= 57
    assert {name for name in families if not name.startswith(("gossipdp_", "process_"))} == set()
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= samples


def test_exposition_names_follow_the_conventions(metrics: Metrics) -> None:
    fill(metrics)
    for family in metrics.registry.collect():
        assert family.documentation.endswith(".") or family.name.startswith("process_")
        assert (family.type == "counter") == all(sample.name.endswith("_total") for sample in family.samples)


def test_promtool_accepts_the_page(metrics: Metrics) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH; Debian's package prometheus has it")
    fill(metrics)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(metrics.registry), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_graphics_processors_are_shown_if_the_host_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(index: int) -> types.SimpleNamespace:
        if index == 1:
            raise RuntimeError("GPU is lost")
        return types.SimpleNamespace(gpu=75)

    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: types.SimpleNamespace(used=10 + index, total=100),
        nvmlDeviceGetUtilizationRates=rates,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    metrics = Metrics()
    fill(metrics)
    assert [value(metrics, "gpu_utilization_ratio", gpu=gpu) for gpu in "012"] == [0.75, None, 0.75]
    assert value(metrics, "gpu_memory_used_bytes", gpu="2") == 12
    assert value(metrics, "gpu_memory_total_bytes", gpu="0") == 100
    families = re.findall(r"^# TYPE gossipdp_", generate_latest(metrics.registry).decode(), re.MULTILINE)
    assert len(families) <= 60


def test_module_imports_no_sockets_of_the_network_and_no_vectors() -> None:
    check = "import sys, gossipdp.runtime.observability.metrics\n"
    check += "print({'zmq', 'numpy', 'torch', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_increment_that_was_applied_counts_as_mixing(metrics: Metrics, clock: Time) -> None:
    for number in (3, 4, 5):
        clock.now += 10.0
        metrics.observe(outer_step(number))
    assert value(metrics, "staleness_rounds") == 3
    clock.now += 4.0
    metrics.observe(events.IncrementApplied(PARTNER, 900, 0.25, 2, 1e-3, "topk128"))
    assert value(metrics, "staleness_rounds") == 0
    assert value(metrics, "landing_lateness") == pytest.approx(0.4)
