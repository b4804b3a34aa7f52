"""Every metric of a peer as data: kind, name, help text, labels. The order is that of the page at ``/metrics``.

Names follow Prometheus' practice: base units, and ``_total`` for what only grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["FAMILIES", "HEALTHY", "Family"]

EXCHANGE_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)
"""seconds"""


class Family(NamedTuple):
    """One metric. `name` is without the prefix ``gossipdp_``; `buckets` are those of a histogram."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family("counter", name, help, labels)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family("gauge", name, help, labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...]) -> Family:
    return Family("histogram", name, help, buckets=buckets)


FAMILIES: Final = (
    _gauge("verdict", "1 for the state with which `gossipdp status` opens, 0 for every other one.", "state"),
    _counter("events_total", "Events of the peer, by type.", "event"),
    # membership
    _gauge("members", "Members of the network as this peer sees them, itself included.", "state"),
    _counter("member_changes_total", "Members seen to enter a state.", "state"),
    _gauge("peer_rtt_seconds", "Smoothed round-trip time of pings.", "peer"),
    # training
    _gauge("clock_steps", "The network's clock, in steps."),
    _gauge("round", "Outer steps in this peer's model, of whichever peer."),
    _counter("rounds_total", "Outer steps that this process has made."),
    _counter("steps_total", "Optimizer steps submitted by the training process."),
    _counter("samples_total", "Samples submitted by the training process."),
    _gauge("network_samples_per_second", "Samples a second of all live members, as they report them."),
    _gauge("loss", "Training loss last reported."),
    _gauge("eval_loss", "Evaluation loss last reported."),
    _counter("training_stall_seconds_total", "Time the training process spent in gossipdp."),
    _gauge("training_attached", "1 while a training process is attached."),
    _counter("sessions_total", "Training processes that attached, by result: ok or a code.", "result"),
    _counter("snapshots_total", "Snapshots of the training process, by result.", "result"),
    _counter("lost_steps_total", "Steps lost with a training process or a daemon."),
    _gauge("submit_every_steps", "Steps between two submits (H)."),
    # outer step and agreement; norms are RMS per parameter
    _gauge("pseudo_gradient_rms", "RMS of the last pseudo-gradient, per parameter."),
    _gauge("outer_step_rms", "RMS of the anchor's own last movement, per parameter."),
    _gauge("outer_momentum", "Momentum of the last outer step (mu); 0 while alone."),
    _gauge("consensus_ratio", "Distance of two anchors over sqrt2 times an outer step, smoothed (R)."),
    _gauge("consensus_distance", "Estimated RMS distance of a replica to the mean of all."),
    _gauge("staleness_rounds", "Own rounds since an exchange last mixed something."),
    _gauge("landing_lateness", "Time from outer step to mixing, as a share of a round (h/H)."),
    # exchanges
    _counter("exchanges_total", "Exchanges ended, by result.", "result"),
    _histogram("exchange_duration_seconds", "Time an exchange took.", EXCHANGE_BUCKETS),
    _counter("chunks_mixed_total", "Chunks mixed into the anchor."),
    _counter("chunks_clipped_total", "Chunks mixed with less than their full difference."),
    _counter("chunks_in_doubt_total", "Chunks a partner may or may not have mixed when it died."),
    _counter("blocks_total", "Blocks of chunks decoded."),
    _counter("escalated_blocks_total", "Blocks that needed more than the codec's own bits."),
    _counter("escalation_bytes_total", "Bytes that those blocks took beyond the codec's own."),
    _counter("offers_refused_total", "Offers that a partner refused.", "reason"),
    _counter("updates_refused_total", "Payloads refused before touching the anchor.", "reason"),
    _counter("strikes_total", "Proven faults of other members, by what was wrong.", "reason"),
    _gauge("members_set_aside", "Members this peer does not average with because of their strikes."),
    _gauge("compression_ratio", "fp32 bytes of the parameters exchanged over bytes received."),
    # transport
    _counter("sent_bytes_total", "Bytes of whole frames sent.", "peer", "lane"),
    _counter("received_bytes_total", "Bytes of whole frames received.", "peer", "lane"),
    _counter("relayed_bytes_total", "Bytes received over relayed links (end), or carried for others (relay).", "role"),
    _counter("relayed_refused_total", "Messages of other members that this peer did not carry."),
    _counter("handshakes_total", "Handshakes, by result: ok or the reason.", "result"),
    _counter("messages_dropped_total", "Messages dropped, by reason.", "reason"),
    _counter("sends_delayed_total", "Sends that met a full connection and waited."),
    _gauge("links", "Links to other peers that are up."),
    _gauge("queue_bytes", "Bytes waiting for a connection."),
    _gauge("queue_jobs", "Vector jobs not finished yet."),
    # state
    _gauge("model_ready", "1 while this peer holds the network's model."),
    _gauge("state_transfer_progress_ratio", "Share of the model received while joining."),
    _counter("state_checks_total", "Fetched states judged by another peer: plausible, denied, unvouched.", "verdict"),
    _counter("resyncs_total", "Models given up for another peer's, by reason: apart or lag.", "reason"),
    _gauge("checkpoint_last_success_timestamp_seconds", "Unix time of the newest checkpoint."),
    _gauge("checkpoint_every_seconds", "Time between two checkpoints, as configured; infinite if they are off."),
    # data
    _gauge("data_epochs", "Epochs the network has covered, with the share of the next.", "data"),
    _gauge("data_open_leases", "Blocks that this peer has open.", "data"),
    _counter(
        "data_duplicate_blocks_total", "Blocks this peer finished although another peer had finished them.", "data"
    ),
    _counter("notices_total", "Notices for the operator, by code.", "code"),
)

HEALTHY: Final[Mapping[str, str]] = {
    "verdict": '1 for `state="healthy"`',
    "members": "as many alive as hosts run, none suspect for long",
    "training_stall_seconds_total": "grows by less than 1 % of the time",
    "training_attached": "1",
    "lost_steps_total": "grows only when a process dies or trains alone",
    "consensus_ratio": "about 1, more with unequal hosts; if it keeps rising, momentum or `every` is too large",
    "consensus_distance": "level or falling",
    "staleness_rounds": "0 to 2",
    "landing_lateness": "well below 1; near 1 exchanges fill their rounds",
    "exchanges_total": 'one or two `result="done"` a round, up to six in early rounds',
    "chunks_in_doubt_total": "grows only when a partner dies",
    "escalated_blocks_total": "below 10 % of `blocks_total` after the first rounds",
    "updates_refused_total": "0",
    "strikes_total": "0",
    "members_set_aside": "0",
    "compression_ratio": "about 9 with 3 bits, after the first rounds",
    "messages_dropped_total": "0",
    "links": "the other live members, up to 128",
    "model_ready": "1",
    "checkpoint_last_success_timestamp_seconds": "no older than `[checkpoint] every`",
    "data_duplicate_blocks_total": "below 1 % of the blocks",
    "notices_total": "level",
}
"""name -> what a healthy peer shows, where that is known"""
