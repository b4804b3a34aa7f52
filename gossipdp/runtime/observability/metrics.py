"""Metrics of a peer for Prometheus: events and totals go in, time series come out at an HTTP endpoint.

This runs on the caller's thread and costs a few dictionary look-ups for each event. The HTTP server only reads the
registry. A gauge without a value is NaN, never a zero that looks measured. Labels that a remote could multiply (peers,
reasons) are capped.
"""

from __future__ import annotations

import importlib
import math
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gossipdp.protocol import events
from gossipdp.protocol.wire.messages import Lane, State, printable, short
from gossipdp.runtime.observability.health import STATES
from gossipdp.runtime.observability.http import HttpServer
from gossipdp.runtime.observability.metric_table import FAMILIES, Family
from gossipdp.runtime.observability.page.published import Published
from gossipdp.runtime.observability.page.site import Site

if TYPE_CHECKING:
    from gossipdp.runtime.observability.status import Status

__all__ = ["MAX_PEERS", "OTHER", "GraphicsProcessors", "Metrics", "PeerLabels"]


class GraphicsProcessors(Collector):
    """Utilisation and memory of the GPUs, if the host has any and the optional package nvidia-ml-py is installed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._count: int = self._nvml.nvmlDeviceGetCount()
        except Exception:  # no package, driver or permission; the error type is known only with the package
            return
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        busy = GaugeMetricFamily(
            "gossipdp_gpu_utilization_ratio", "Share of time a kernel was running.", labels=["gpu"]
        )
        used = GaugeMetricFamily("gossipdp_gpu_memory_used_bytes", "Memory in use.", labels=["gpu"])
        total = GaugeMetricFamily("gossipdp_gpu_memory_total_bytes", "Memory of the device.", labels=["gpu"])
        for index in range(self._count):
            try:
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                busy.add_metric([str(index)], self._nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
                used.add_metric([str(index)], memory.used)
                total.add_metric([str(index)], memory.total)
            except Exception:  # a GPU that fell off the bus must not hide the other figures
                continue
        return busy, used, total


MAX_PEERS: Final = 32
"""peers with series of their own; the traffic of all others counts under "other" """
OTHER: Final = "other"


class PeerLabels:
    """The first MAX_PEERS peers have series of their own. A remote that makes new identities must not multiply series.

    Args:
        states: families labelled by peer, dropped once the peer is gone.
        totals: families labelled by peer and lane, kept until another peer needs the room.
    """

    def __init__(self, states: tuple[Gauge, ...], totals: tuple[Counter, ...]) -> None:
        self._states, self._totals = states, totals
        self._own: dict[bytes, str] = {}
        self._gone: dict[bytes, None] = {}

    def of(self, peer: bytes) -> str:
        """The label of `peer`: a short id, or "other"."""
        own = self._own.get(peer)
        if own is not None:
            return own
        if len(self._own) >= MAX_PEERS and self._gone:
            self._drop(next(iter(self._gone)))
        if len(self._own) >= MAX_PEERS or not peer or short(peer) in self._own.values():
            return OTHER
        self._own[peer] = short(peer)
        return self._own[peer]

    def changed(self, peer: bytes, *, gone: bool) -> None:
        """A member is `gone`, or is back."""
        if gone and peer in self._own:
            self._gone[peer] = None
            for family in self._states:
                _remove(family, self._own[peer])
        else:
            self._gone.pop(peer, None)

    def _drop(self, peer: bytes) -> None:
        del self._gone[peer]
        label = self._own.pop(peer)
        for state in self._states:
            _remove(state, label)
        for total in self._totals:
            for lane in Lane:
                _remove(total, label, lane.name.lower())


def _remove(family: Counter | Gauge, *labels: str) -> None:
    """Drop a child if it exists. The library raises KeyError for a missing child up to version 0.21.1."""
    with suppress(KeyError):
        family.remove(*labels)


MAX_REASONS: Final = 16
"""most values of a label that a remote can choose; further ones count as "other" """


class Metrics:
    """The daemon's Prometheus metrics.

    Args:
        software: the version in ``build_info``; the installed package's if empty.
        clock: monotonic time in seconds.
    """

    def __init__(self, software: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        # `_created` doubles every counter's families and no query uses it; the library has no narrower switch.
        disable_created: Callable[[], None] = prometheus_client.disable_created_metrics
        disable_created()
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._server: HttpServer | None = None
        self._totals: dict[Hashable, float] = {}
        build = Info("gossipdp_build", "Version of gossipdp and of the Python it runs on.", registry=registry)
        build.info({"version": software or _installed(), "python": platform.python_version()})
        ProcessCollector(registry=registry)
        GraphicsProcessors(registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            self._add(family)
        self._gauges["model_ready"].set(0)
        traffic = (self._counters["sent_bytes_total"], self._counters["received_bytes_total"])
        self._peers = PeerLabels((self._gauges["peer_rtt_seconds"],), traffic)
        self._reasons: dict[str, set[str]] = {}
        self._alive = 1
        self._round_at = self._round_time = math.nan
        self._mixed_round: int | None = None
        self._last_round = 0

    def _add(self, family: Family) -> None:
        name = f"gossipdp_{family.name}"
        match family.kind:
            case "counter":
                self._counters[family.name] = Counter(name, family.help, family.labels, registry=self.registry)
            case "gauge":
                gauge = Gauge(name, family.help, family.labels, registry=self.registry)
                self._gauges[family.name] = gauge
                if not family.labels:
                    gauge.set(math.nan)
            case "histogram":
                histogram = Histogram(name, family.help, buckets=family.buckets, registry=self.registry)
                self._histograms[family.name] = histogram

    # -- serving ----------------------------------------------------------------------------------------------

    def serve(self, listen: str, published: Published | None = None) -> tuple[str, int]:
        """Answer scrapes and the status page on `listen` or the next free port (see `HttpServer`).

        Args:
            published: what the status page shows; without it the page waits for data in vain.

        Returns:
            Host and port.
        """
        site = Site(prometheus_client.make_wsgi_app(self.registry), published or Published())
        self._server = HttpServer(listen, site)
        return self._server.address

    def close(self) -> None:
        """Stop answering. What was counted stays."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    # -- events -----------------------------------------------------------------------------------------------

    def observe(self, event: events.Event) -> None:
        self._counters["events_total"].labels(type(event).__name__).inc()
        match event:
            case events.ExchangeEnded():
                self._exchange(event)
            case events.RoundDone():
                self._outer_step(event)
            case events.MemberChanged(member):
                self._counters["member_changes_total"].labels(member.state.name.lower()).inc()
                self._peers.changed(member.id, gone=member.state in (State.FAILED, State.LEFT))
            case events.StateReady(_, clock):
                self._gauges["model_ready"].set(1)
                self._gauges["state_transfer_progress_ratio"].set(1)
                self._gauges["clock_steps"].set(clock)
            case events.TransferProgress(_, chunks, of):
                self._gauges["state_transfer_progress_ratio"].set(chunks / of if of else math.nan)
            case events.SessionOpened():
                self._counters["sessions_total"].labels("ok").inc()
                self._gauges["training_attached"].set(1)
            case events.SessionRefused(code):
                self._count("sessions_total", code)
            case events.SnapshotTaken(_, refused):
                self._count("snapshots_total", refused or "ok")
            case events.Pace(every):
                self._gauges["submit_every_steps"].set(every)
            case events.OfferRefused(_, reason):
                self._count("offers_refused_total", reason)
            case events.ChunksInDoubt(_, count):
                self._counters["chunks_in_doubt_total"].inc(count)
            case events.UpdateRefused(_, reason):
                self._count("updates_refused_total", reason)
            case events.Struck(_, reason):
                self._count("strikes_total", reason)
            case events.StateJudged(_, witness, plausible):
                verdict = "unvouched" if not witness else "plausible" if plausible else "denied"
                self._counters["state_checks_total"].labels(verdict).inc()
            case events.ResyncBegan(reason):
                self._counters["resyncs_total"].labels(reason).inc()
            case events.MessageDropped(_, reason):
                self._count("messages_dropped_total", reason)
            case events.OverBudget(_, kind):
                self._count("messages_dropped_total", f"over budget: {kind}")
            case events.MessageFailed():
                self._count("messages_dropped_total", "fault of this peer")
            case events.DataCovered(name, epoch, finished, blocks, _, open_, duplicates):
                label = self._reason("data", name)
                self._gauges["data_epochs"].labels(label).set(epoch + finished / blocks)
                self._gauges["data_open_leases"].labels(label).set(open_)
                self._raise(self._counters["data_duplicate_blocks_total"].labels(label), ("data", name), duplicates)
            case events.Notice(code):
                self._count("notices_total", code)

    def _exchange(self, event: events.ExchangeEnded) -> None:
        self._count("exchanges_total", event.result)
        self._histograms["exchange_duration_seconds"].observe(event.duration)
        self._counters["chunks_mixed_total"].inc(event.chunks)
        self._counters["chunks_clipped_total"].inc(event.clipped)
        self._counters["blocks_total"].inc(event.blocks)
        self._counters["escalated_blocks_total"].inc(event.escalated)
        self._counters["escalation_bytes_total"].inc(event.escalation_bytes)
        if event.chunks == 0:
            return
        self._mixed()
        # E||a_i - a_j||^2 = 2N/(N-1) CD^2 over random pairs, N members
        members = max(2, self._alive)
        self._gauges["consensus_distance"].set(event.distance * math.sqrt((members - 1) / (2 * members)))

    def _mixed(self) -> None:
        self._mixed_round = self._last_round
        self._gauges["staleness_rounds"].set(0)
        self._gauges["landing_lateness"].set((self._clock() - self._round_at) / self._round_time)

    def _outer_step(self, event: events.RoundDone) -> None:
        now = self._clock()
        self._round_time, self._round_at = max(now - self._round_at, 1e-9), now
        self._last_round = event.round
        self._counters["rounds_total"].inc()
        if self._mixed_round is None:
            self._mixed_round = event.round - 1
        self._gauges["staleness_rounds"].set(event.round - self._mixed_round)
        self._gauges["round"].set(event.round)
        self._gauges["clock_steps"].set(event.clock)
        self._gauges["pseudo_gradient_rms"].set(event.pseudo_gradient)
        self._gauges["outer_step_rms"].set(event.movement)
        self._gauges["outer_momentum"].set(event.momentum)

    # -- what no event tells ----------------------------------------------------------------------------------

    def update(self, status: Status, *, queued: int) -> None:
        """Read what no event tells: states, and totals kept elsewhere. Called about twice a second.

        Args:
            status: the peer's status.
            queued: vector jobs not finished yet.
        """
        view, counters, links = status.view, status.transport.counters, status.transport.links()
        self.set_members(status.counts())
        self._gauges["round"].set(view.model_rounds)
        self._gauges["clock_steps"].set(view.clock)
        self._gauges["consensus_ratio"].set(view.consensus_ratio)
        self._gauges["members_set_aside"].set(len(view.set_aside(self._clock())))
        self.set_training(
            steps=status.steps,
            samples=status.samples,
            loss=status.loss,
            stall=status.stall_seconds,
            on=status.training,
        )
        self._gauges["eval_loss"].set(status.eval_loss)
        _, network_rate = status.samples_per_second()
        self._gauges["network_samples_per_second"].set(math.nan if network_rate is None else network_rate)
        if status.exchanged_bytes:
            self._gauges["compression_ratio"].set(4 * status.exchanged_parameters / status.exchanged_bytes)
        self.set_traffic(counters.sent_bytes, counters.received_bytes)
        self.set_handshakes(counters.handshakes)
        for reason, total in counters.drops.items():
            self._raise(self._labelled("messages_dropped_total", reason), ("drops", reason), total)
        self._raise(self._counters["sends_delayed_total"], "full", counters.full)
        for role, carried in (("end", counters.relayed_bytes), ("relay", counters.carried_bytes)):
            self._raise(self._counters["relayed_bytes_total"].labels(role), ("relayed", role), carried.total())
        self._raise(self._counters["relayed_refused_total"], "not carried", counters.not_carried)
        self._gauges["links"].set(len(links))
        for link in links:
            self.set_rtt(link.peer, view.rtt(link.peer))
        self.set_queues(jobs=queued)

    def set_verdict(self, state: str) -> None:
        """Set the state of the verdict on this peer, as named in `health.STATES`."""
        for kind in STATES:
            self._gauges["verdict"].labels(kind.name).set(kind.name == state)

    def set_members(self, counts: Mapping[str, int]) -> None:
        """Set the number of members in each state ("alive", "suspect", ...), this peer included."""
        self._alive = counts.get("alive", 1)
        for state in State:
            self._gauges["members"].labels(state.name.lower()).set(counts.get(state.name.lower(), 0))

    def set_training(self, *, steps: int, samples: int, loss: float, stall: float, on: bool) -> None:
        """Set totals of this process. `stall` (seconds) starts at 0 with every training process. `loss` may be NaN."""
        self._raise(self._counters["steps_total"], "steps", steps)
        self._raise(self._counters["samples_total"], "samples", samples)
        self._raise(self._counters["training_stall_seconds_total"], "stall", stall)
        self._gauges["loss"].set(loss)
        self._gauges["training_attached"].set(on)

    def set_traffic(self, sent: Mapping[tuple[bytes, Lane], int], received: Mapping[tuple[bytes, Lane], int]) -> None:
        """Set the bytes sent and received so far, by peer and lane."""
        for name, totals in (("sent_bytes_total", sent), ("received_bytes_total", received)):
            for (peer, lane), total in totals.items():
                if self._totals.get((name, peer, lane)) != total:
                    child = self._counters[name].labels(self._peers.of(peer), lane.name.lower())
                    self._raise(child, (name, peer, lane), total)

    def set_handshakes(self, totals: Mapping[str, int]) -> None:
        for result, total in totals.items():
            self._raise(self._labelled("handshakes_total", result), ("handshakes", result), total)

    def set_rtt(self, peer: bytes, seconds: float | None) -> None:
        label = self._peers.of(peer)
        if seconds is not None and label != OTHER:
            self._gauges["peer_rtt_seconds"].labels(label).set(seconds)

    def set_queues(self, *, jobs: int | None = None, bytes: int | None = None) -> None:
        """Set the jobs that wait for the compute threads, and the bytes that wait for connections."""
        for family, value in ((self._gauges["queue_jobs"], jobs), (self._gauges["queue_bytes"], bytes)):
            if value is not None:
                family.set(value)

    def count_lost_steps(self, steps: int) -> None:
        """Count steps of a training process that no anchor will ever hold."""
        self._counters["lost_steps_total"].inc(steps)

    def set_checkpoint_every(self, seconds: float) -> None:
        """Set the time between two checkpoints; infinite if they are off."""
        self._gauges["checkpoint_every_seconds"].set(seconds)

    def checkpoint_saved(self, timestamp: float | None = None) -> None:
        """A checkpoint was written, or was found at the start. `timestamp`: Unix time in seconds; now by default."""
        self._gauges["checkpoint_last_success_timestamp_seconds"].set(time.time() if timestamp is None else timestamp)

    def _count(self, name: str, reason: str) -> None:
        self._labelled(name, reason).inc()

    def _labelled(self, name: str, reason: str) -> Counter:
        return self._counters[name].labels(self._reason(name, reason))

    def _raise(self, child: Counter, key: Hashable, total: float) -> None:
        """Bring a counter up to a total kept elsewhere. A total that fell was started anew, as in PromQL's rate()."""
        before = self._totals.get(key, 0.0)
        if total != before:
            child.inc(total - before if total > before else total)
            self._totals[key] = total

    def _reason(self, family: str, reason: str) -> str:
        reason = printable(reason)
        known = self._reasons.setdefault(family, set())
        if reason in known:
            return reason
        if len(known) >= MAX_REASONS:
            return OTHER
        known.add(reason)
        return reason


def _installed() -> str:
    try:
        return metadata.version("gossipdp")
    except metadata.PackageNotFoundError:
        return "unknown"
