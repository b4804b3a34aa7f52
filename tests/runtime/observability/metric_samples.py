"""Events of every kind, a status, and a clock that the test moves."""

import dataclasses
import math
import types
from typing import Any

from gossipdp.protocol import events
from gossipdp.protocol.causes import Fault, Objection, Outcome, Unused
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.protocol.wire.messages import Decision, Lane, Member, Phase, Receipt, State, Verdict
from gossipdp.runtime.network.events import LinkStatus, TransportCounters
from gossipdp.runtime.observability.metrics import Metrics

PEER, PARTNER = bytes([1]) * 32, bytes([2]) * 32


def number(n: int) -> bytes:
    return n.to_bytes(4, "big") + bytes(28)


def member(peer: bytes = PARTNER, state: State = State.ALIVE) -> Member:
    return Member(peer, "host", "10.0.0.2:4710", 1, 0, state)


def exchange(**changed: Any) -> events.ExchangeEnded:
    usual = events.ExchangeEnded(
        partner=PARTNER, exchange=7, initiator=True, result=Outcome.DONE, codec="modulo4", chunks=16, of=16,
        distance=0.02, clipped=1, blocks=160, escalated=12, escalation_bytes=90, sent=500, received=600, duration=0.7,
    )  # fmt: skip
    return dataclasses.replace(usual, **changed)


def outer_step(number: int) -> events.RoundDone:
    return events.RoundDone(round=number, clock=50 * number, pseudo_gradient=0.1, movement=0.08, lr=0.7, momentum=0.8)


EVENTS: list[events.Event] = [
    events.MemberChanged(member(), None),
    events.Joined(PARTNER),
    events.StateReady(Origin.RECEIVED, 1200),
    events.StateRenewed(),
    events.TookOver(clock=875, steps=405, before=0),
    events.WeightsLoaded(kept=False),
    events.RanAway(active=True),
    events.SessionOpened(1),
    events.SessionRefused("GD-301", "a parameter differs"),
    events.Pace(50),
    events.SlotSealed(3, (0, 1)),
    events.SnapshotTaken(4),
    events.SnapshotTaken(5, Unused.NAN),
    outer_step(3),
    events.ExchangeStarted(PARTNER, 7, True, "modulo4"),
    exchange(),
    events.Decided((Decision(1, Verdict.BANNED, PARTNER),)),
    events.ReceiptsTaken((Receipt(b"secret", 1, PARTNER),)),
    events.OperatorDiffers(PARTNER, b"o" * 32),
    events.OfferRefused(PARTNER, Objection.BUSY),
    events.ChunksInDoubt(PARTNER, 2),
    events.UpdateRefused(PARTNER, Fault.NAN),
    events.Struck(PARTNER, Fault.NAN, 3, 60.0),
    events.MessageDropped(PARTNER, "malformed"),
    events.OverBudget(PARTNER, "Offer"),
    events.MessageFailed(PARTNER, "Ping", "ValueError in take, line 3: no"),
    events.TransferProgress(PARTNER, 3, 12),
    events.MomentsProgress(PARTNER, 3, 12),
    events.StateJudged(PARTNER, b"w" * 32, True, 0.1, 0.5),
    events.StateJudged(PARTNER, b"", True, math.nan, math.nan),
    events.RoundSettled(7),
    events.CheckpointAhead(500, 20, 300),
    events.ResyncBegan(Reason.APART, 3, 5),
    events.ResyncEnded(Reason.APART, PARTNER, True, 4.0),
    events.DataKnown(bytes(16)),
    events.DataCovered("data", 3, 42, 100, 4, 2, 5),
    events.FinishBegan(PARTNER, calls=True),
    events.FinishPhase(Phase.CLOSING),
    events.Finished((PARTNER,), events.Closeness(True, True, 0.02, 1e-5, 3)),
    events.Left(),
    events.RelaysChosen((PARTNER,)),
    events.Notice("GD-401", "no partner in 60 s"),
]


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gossipdp_{name}", labels)


def fill(metrics: Metrics) -> None:
    for event in EVENTS:
        metrics.observe(event)
    metrics.update(status(), queued=3)  # type: ignore[arg-type]
    metrics.set_queues(bytes=4096)
    metrics.set_verdict("healthy")
    metrics.set_checkpoint_every(600.0)
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
        view=types.SimpleNamespace(
            model_rounds=3,
            clock=150,
            consensus_ratio=1.25,
            set_aside=lambda now: (PARTNER,),
            rtt=lambda peer: 0.03 if peer == PARTNER else None,
        ),
        transport=types.SimpleNamespace(counters=counters, links=lambda: [link]),
        counts=lambda: {"alive": 4, "suspect": 1, "failed": 0, "left": 2},
        steps=150,
        samples=1200,
        samples_per_second=lambda: (40.0, 160.0),
        loss=1.5,
        eval_loss=1.25,
        stall_seconds=0.25,
        training=True,
        exchanged_bytes=500,
        exchanged_parameters=1000.0,
    )
