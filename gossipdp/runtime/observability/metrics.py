"""What a peer tells Prometheus: events and totals in, families of time series out, and the server they are read from.

The only file that imports prometheus_client. It knows no vector and no socket of the network, decides nothing, and
costs the I/O loop a few dictionary look-ups an event. All of it runs on the caller's thread; the web server's only
reads the registry.

Names follow Prometheus' practice: base units, ``_total`` for what only grows. A gauge that nobody has fed yet is NaN,
never a zero that looks measured. Labels that a stranger could multiply (peers, reasons) are capped.
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
from gossipdp.runtime.observability.http import WebServer

if TYPE_CHECKING:
    from gossipdp.runtime.observability.status import Status

__all__ = ["Metrics"]

MAX_PEERS: Final = 32
"""peers with series of their own; the traffic of all others stands under "other" """
MAX_REASONS: Final = 16
OTHER: Final = "other"
EXCHANGE_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)


class Metrics:
    """Args:

    software: the version for ``build_info``; that of the installed package if empty.
    clock: seconds, monotonic; for rates and for the lateness of a landing.
    """

    def __init__(self, software: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        # `_created` doubles every counter's families and no query here uses it; the library knows no narrower switch.
        disable_created: Callable[[], None] = prometheus_client.disable_created_metrics
        disable_created()
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._server: WebServer | None = None
        self._totals: dict[Hashable, float] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gossipdp_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            family = Gauge(f"gossipdp_{name}", text, labels, registry=registry)
            if not labels:
                family.set(math.nan)
            return family

        build = Info("gossipdp_build", "Version of gossipdp and of the Python it runs on.", registry=registry)
        build.info({"version": software or _installed(), "python": platform.python_version()})
        ProcessCollector(registry=registry)
        _GraphicsProcessors(registry)

        self._events = counter("events_total", "Events of the peer, by type.", "event")
        # membership
        self._members = gauge("members", "Members of the network as this peer sees them, itself included.", "state")
        self._member_changes = counter("member_changes_total", "Members seen to enter a state.", "state")
        self._rtt = gauge("peer_rtt_seconds", "Smoothed round-trip time of pings.", "peer")
        # training
        self._clock_steps = gauge("clock_steps", "The network's clock, in steps.")
        self._round = gauge("round", "Outer steps behind this peer's model, whoever made them.")
        self._rounds = counter("rounds_total", "Outer steps that this process has made.")
        self._steps = counter("steps_total", "Optimizer steps submitted by the training process.")
        self._samples = counter("samples_total", "Samples submitted by the training process.")
        self._loss = gauge("loss", "Training loss last reported.")
        self._stall = counter("training_stall_seconds_total", "Time the training process spent in gossipdp.")
        self._attached = gauge("training_attached", "1 while a training process is attached.")
        self._sessions = counter(
            "sessions_total", "Training processes that attached, by result: ok or a code.", "result"
        )
        self._snapshots = counter("snapshots_total", "Snapshots of the training process, by result.", "result")
        self._lost_steps = counter("lost_steps_total", "Steps lost with a training process or a daemon.")
        self._pace = gauge("submit_every_steps", "Steps between two submits (H).")
        # outer step and agreement; norms are RMS per parameter
        self._pseudo_gradient = gauge("pseudo_gradient_rms", "RMS of the last pseudo-gradient, per parameter.")
        self._movement = gauge("outer_step_rms", "RMS of the anchor's own last movement, per parameter.")
        self._outer_momentum = gauge("outer_momentum", "Momentum of the last outer step (mu); 0 while alone.")
        self._ratio = gauge("consensus_ratio", "Distance of two anchors over sqrt2 times an outer step, smoothed (R).")
        self._consensus = gauge("consensus_distance", "Estimated RMS distance of a replica to the mean of all.")
        self._staleness = gauge("staleness_rounds", "Own rounds since an exchange last mixed something.")
        self._lateness = gauge("landing_lateness", "Time from outer step to mixing, as a share of a round (h/H).")
        # exchanges
        self._exchanges = counter("exchanges_total", "Exchanges ended, by result.", "result")
        self._duration = Histogram(
            "gossipdp_exchange_duration_seconds", "Time an exchange took.", buckets=EXCHANGE_BUCKETS, registry=registry
        )
        self._chunks = counter("chunks_mixed_total", "Chunks mixed into the anchor.")
        self._clipped = counter("chunks_clipped_total", "Chunks mixed with less than their full difference.")
        self._cut = counter("increments_cut_total", "Others' increments longer than is usual, applied cut.")
        self._epochs_judged = counter("epochs_judged_total", "Settled epochs to which a robust rule was applied.")
        self._in_doubt = counter("chunks_in_doubt_total", "Chunks a partner may or may not have mixed when it died.")
        self._blocks = counter("blocks_total", "Blocks of chunks decoded.")
        self._escalated = counter("escalated_blocks_total", "Blocks that needed more than the codec's own bits.")
        self._escalation = counter("escalation_bytes_total", "Bytes that those blocks took beyond the codec's own.")
        self._offers_refused = counter("offers_refused_total", "Offers that a partner refused.", "reason")
        self._updates_refused = counter(
            "updates_refused_total", "Payloads refused before touching the anchor.", "reason"
        )
        self._strikes = counter("strikes_total", "Proven faults of other members, by what was wrong.", "reason")
        self._set_aside = gauge("members_set_aside", "Members this peer does not average with for their strikes.")
        self._compression = gauge("compression_ratio", "fp32 bytes of the parameters exchanged over bytes received.")
        # transport
        self._sent = counter("sent_bytes_total", "Bytes of whole frames sent.", "peer", "lane")
        self._received = counter("received_bytes_total", "Bytes of whole frames received.", "peer", "lane")
        self._handshakes = counter("handshakes_total", "Handshakes, by result: ok or why not.", "result")
        self._dropped = counter("messages_dropped_total", "Messages dropped, by reason.", "reason")
        self._full = counter("sends_delayed_total", "Sends that met a full connection and waited.")
        self._links = gauge("links", "Links to other peers that are up.")
        self._queue_bytes = gauge("queue_bytes", "Bytes waiting for a connection.")
        self._queue_jobs = gauge("queue_jobs", "Vector jobs not finished yet.")
        # state
        self._ready = gauge("model_ready", "1 while this peer holds the network's model.")
        self._ready.set(0)
        self._transfer = gauge("state_transfer_progress_ratio", "Share of the model received while joining.")
        self._judged = counter(
            "state_checks_total", "Fetched states judged by another peer: plausible, denied, unvouched.", "verdict"
        )
        self._resyncs = counter(
            "resyncs_total", "Models given up for others', by reason: apart, lag or diverged.", "reason"
        )
        self._checkpoint = gauge("checkpoint_last_success_timestamp_seconds", "Unix time of the newest checkpoint.")
        # data
        self._covered = gauge("data_epochs", "Epochs the network has covered, with the share of the next.", "data")
        self._leases = gauge("data_open_leases", "Blocks that this peer has open.", "data")
        self._again = counter(
            "data_duplicate_blocks_total", "Blocks this peer finished that another was known to have finished.", "data"
        )
        self._notices = counter("notices_total", "Things an operator should read, by code.", "code")

        self._peers = _PeerLabels((self._rtt,), (self._sent, self._received))
        self._reasons: dict[str, set[str]] = {}
        self._alive = 1
        self._round_at = self._round_time = math.nan
        self._mixed_round: int | None = None
        self._last_round = 0

    # -- serving ----------------------------------------------------------------------------------------------

    def serve(self, listen: str) -> tuple[str, int]:
        """Answer scrapes on `listen` ("host:port"), or on the next free port; returns where. Errors: see WebServer."""
        self._server = WebServer(listen, prometheus_client.make_wsgi_app(self.registry))
        return self._server.address

    def close(self) -> None:
        """Stop answering. What was counted stays."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    # -- events -----------------------------------------------------------------------------------------------

    def observe(self, event: events.Event) -> None:
        self._events.labels(type(event).__name__).inc()
        match event:
            case events.ExchangeEnded():
                self._exchange(event)
            case events.IncrementApplied():
                self._cut.inc(event.scale < 1.0)
                self._mixed()
            case events.EpochJudged():
                self._epochs_judged.inc()
            case events.RoundDone():
                self._outer_step(event)
            case events.MemberChanged(member):
                self._member_changes.labels(member.state.name.lower()).inc()
                self._peers.changed(member.id, gone=member.state in (State.FAILED, State.LEFT))
            case events.StateReady(_, clock):
                self._ready.set(1)
                self._transfer.set(1)
                self._clock_steps.set(clock)
            case events.TransferProgress(_, chunks, of):
                self._transfer.set(chunks / of if of else math.nan)
            case events.SessionOpened():
                self._sessions.labels("ok").inc()
                self._attached.set(1)
            case events.SessionRefused(code):
                self._sessions.labels(self._reason("sessions", code)).inc()
            case events.SnapshotTaken(_, refused):
                self._snapshots.labels(self._reason("snapshots", refused or "ok")).inc()
            case events.Pace(every):
                self._pace.set(every)
            case events.OfferRefused(_, reason):
                self._offers_refused.labels(self._reason("offers", reason)).inc()
            case events.ChunksInDoubt(_, count):
                self._in_doubt.inc(count)
            case events.UpdateRefused(_, reason):
                self._updates_refused.labels(self._reason("updates", reason)).inc()
            case events.Struck(_, reason):
                self._strikes.labels(self._reason("strikes", reason)).inc()
            case events.StateJudged(_, witness, plausible):
                self._judged.labels("unvouched" if not witness else "plausible" if plausible else "denied").inc()
            case events.ResyncBegan(reason):
                self._resyncs.labels(reason).inc()
            case events.MessageDropped(_, reason):
                self._dropped.labels(self._reason("drops", reason)).inc()
            case events.DataCovered(name, epoch, finished, blocks, _, open_, duplicates):
                label = self._reason("data", name)
                self._covered.labels(label).set(epoch + finished / blocks)
                self._leases.labels(label).set(open_)
                self._raise(self._again.labels(label), ("data", name), duplicates)
            case events.Notice(code):
                self._notices.labels(self._reason("notices", code)).inc()

    def _exchange(self, event: events.ExchangeEnded) -> None:
        self._exchanges.labels(self._reason("exchanges", event.result)).inc()
        self._duration.observe(event.duration)
        self._chunks.inc(event.chunks)
        self._clipped.inc(event.clipped)
        self._blocks.inc(event.blocks)
        self._escalated.inc(event.escalated)
        self._escalation.inc(event.escalation_bytes)
        if event.chunks == 0:
            return
        self._mixed()
        # E||a_i - a_j||^2 = 2N/(N-1) CD^2 over random pairs, N members
        members = max(2, self._alive)
        self._consensus.set(event.distance * math.sqrt((members - 1) / (2 * members)))

    def _mixed(self) -> None:
        self._mixed_round = self._last_round
        self._staleness.set(0)
        self._lateness.set((self._clock() - self._round_at) / self._round_time)

    def _outer_step(self, event: events.RoundDone) -> None:
        now = self._clock()
        self._round_time, self._round_at = max(now - self._round_at, 1e-9), now
        self._last_round = event.round
        self._rounds.inc()
        if self._mixed_round is None:
            self._mixed_round = event.round - 1
        self._staleness.set(event.round - self._mixed_round)
        self._round.set(event.round)
        self._clock_steps.set(event.clock)
        self._pseudo_gradient.set(event.pseudo_gradient)
        self._movement.set(event.movement)
        self._outer_momentum.set(event.momentum)

    # -- what no event tells ----------------------------------------------------------------------------------

    def update(self, status: Status, *, queued: int) -> None:
        """Take over what is only kept as a state or a total; a few times a minute to a few times a second.

        Args:
            status: the peer's own account of itself.
            queued: vector jobs not finished yet.
        """
        peer, counters, links = status.peer, status.transport.counters, status.transport.links()
        self.set_members(status.counts())
        self._round.set(peer.rounds.rounds)
        self._clock_steps.set(peer.clock)
        self._ratio.set(peer.pacing.ratio)
        self._set_aside.set(len(peer.strikes.aside(self._clock())))
        self.set_training(
            steps=status.steps,
            samples=status.samples,
            loss=status.loss,
            stall=status.stall_seconds,
            on=status.training,
        )
        if status.exchanged_bytes:
            self._compression.set(4 * status.exchanged_parameters / status.exchanged_bytes)
        self.set_traffic(counters.sent_bytes, counters.received_bytes)
        self.set_handshakes(counters.handshakes)
        for reason, total in counters.drops.items():
            self._raise(self._dropped.labels(self._reason("drops", reason)), ("drops", reason), total)
        self._raise(self._full, "full", counters.full)
        self._links.set(len(links))
        for link in links:
            self.set_rtt(link.peer, peer.membership.rtt(link.peer))
        self.set_queues(jobs=queued)

    def set_members(self, counts: Mapping[str, int]) -> None:
        """How many members are in each state ("alive", "suspect", ...), this peer included."""
        self._alive = counts.get("alive", 1)
        for state in State:
            self._members.labels(state.name.lower()).set(counts.get(state.name.lower(), 0))

    def set_training(self, *, steps: int, samples: int, loss: float, stall: float, on: bool) -> None:
        """Totals of this process; `stall` in seconds starts anew with every training process, `loss` may be NaN."""
        self._raise(self._steps, "steps", steps)
        self._raise(self._samples, "samples", samples)
        self._raise(self._stall, "stall", stall)
        self._loss.set(loss)
        self._attached.set(on)

    def set_traffic(self, sent: Mapping[tuple[bytes, Lane], int], received: Mapping[tuple[bytes, Lane], int]) -> None:
        """Bytes so far, by peer and lane."""
        for way, family, totals in (("sent", self._sent, sent), ("received", self._received, received)):
            for (peer, lane), total in totals.items():
                if self._totals.get((way, peer, lane)) != total:
                    child = family.labels(self._peers.of(peer), lane.name.lower())
                    self._raise(child, (way, peer, lane), total)

    def set_handshakes(self, totals: Mapping[str, int]) -> None:
        for result, total in totals.items():
            self._raise(self._handshakes.labels(self._reason("handshakes", result)), ("handshakes", result), total)

    def set_rtt(self, peer: bytes, seconds: float | None) -> None:
        label = self._peers.of(peer)
        if seconds is not None and label != OTHER:
            self._rtt.labels(label).set(seconds)

    def set_queues(self, *, jobs: int | None = None, bytes: int | None = None) -> None:
        """What waits: for the compute thread (jobs), for connections (bytes)."""
        for family, value in ((self._queue_jobs, jobs), (self._queue_bytes, bytes)):
            if value is not None:
                family.set(value)

    def count_lost_steps(self, steps: int) -> None:
        """Steps a training process made and that no anchor will ever hold."""
        self._lost_steps.inc(steps)

    def checkpoint_saved(self, timestamp: float | None = None) -> None:
        """A checkpoint was written and verified; or found at the start, of `timestamp` (Unix time, seconds)."""
        self._checkpoint.set(time.time() if timestamp is None else timestamp)

    def _raise(self, child: Counter, key: Hashable, total: float) -> None:
        """Bring a counter up to a total kept elsewhere; a total that fell was started anew, as in PromQL's rate()."""
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


class _PeerLabels:
    """Which peers have series of their own: the first MAX_PEERS, until one that is gone must make room.

    Args:
        states: families labelled by peer, which mean nothing once it is gone.
        totals: families labelled by peer and lane, which stay true.
    """

    def __init__(self, states: tuple[Gauge, ...], totals: tuple[Counter, ...]) -> None:
        self._states, self._totals = states, totals
        self._own: dict[bytes, str] = {}
        self._gone: dict[bytes, None] = {}

    def of(self, peer: bytes) -> str:
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
    """Drop a child, if it is there: only later versions of the library than 0.21.1 take it if it is not."""
    with suppress(KeyError):
        family.remove(*labels)


class _GraphicsProcessors(Collector):
    """Utilisation and memory of the GPUs, if there are any and the optional package nvidia-ml-py is there to ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._count: int = self._nvml.nvmlDeviceGetCount()
        except Exception:  # no package, no driver or no permission: its error type is only known once it is there
            return
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        busy = GaugeMetricFamily(
            "gossipdp_gpu_utilization_ratio", "Share of time a kernel was running.", labels=["gpu"]
        )
        used = GaugeMetricFamily("gossipdp_gpu_memory_used_bytes", "Memory in use.", labels=["gpu"])
        total = GaugeMetricFamily("gossipdp_gpu_memory_total_bytes", "Memory there is.", labels=["gpu"])
        for index in range(self._count):
            try:
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                busy.add_metric([str(index)], self._nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
                used.add_metric([str(index)], memory.used)
                total.add_metric([str(index)], memory.total)
            except Exception:  # a GPU that fell off the bus must not take the other figures along
                continue
        return busy, used, total


def _installed() -> str:
    try:
        return metadata.version("gossipdp")
    except metadata.PackageNotFoundError:
        return "unknown"
