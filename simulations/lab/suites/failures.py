"""Failures: what hosts that die, pause, slow down or are replaced cost each method, at equal time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from simulations.lab.failures.hosts import Event, FailureSetting
from simulations.lab.failures.runs import FailureRun
from simulations.lab.problems import ByteTransformer
from simulations.lab.runs.runs import link
from simulations.lab.suites.arms import explicit_options
from simulations.lab.suites.b8 import TRANSFORMER, WARMUP
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, formatted
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.tables import LOSSES, loss_cells

__all__ = ["CALM", "CONDITIONS", "SUITE", "SYNCER", "events_of"]

PEERS: Final = 8
SECONDS: Final = 1200.0
MEGABITS, MILLISECONDS = 1000.0, 1.0
AS_PARAMETERS: Final = 1e8
FEWER_PARAMETERS: Final = 1e7
"""a model whose all-reduce fits behind a step"""
AFFLICTED: Final = 5
"""the host that dies, pauses or has the slow link"""
REPLACED: Final = 60.0
"""seconds until another host is ready in place of one that died"""

CALM: Final = "nothing goes wrong"
DIES: Final = "a host dies"
PAUSES: Final = "a host pauses"
SLOW: Final = "a link falls to a tenth"
CHURN: Final = "20 % churn"
CONDITIONS: Final = (CALM, DIES, PAUSES, SLOW, CHURN)
PRESENT: Final = (CALM, SLOW)
"""no host is ever missing, so a quorum is all hosts, and DiLoCo that waits is the same method"""

SYNCER: Final = "Decoupled DiLoCo, its syncer too"
DECOUPLED: Final[Mapping[str, Any]] = {
    "alpha": 1.0,
    "mu": 0.8,
    "plain_first": True,
    "warmup_steps": WARMUP,
    "bits": 4,
    "radial": False,
    "quorum": 4,
    "at_syncer": (),
}
WAYS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "pairwise": ("pairwise", {"warmup_steps": WARMUP}),
    "DiLoCo, quorum": ("diloco-quorum", {"alpha": 1.0, "mu": 0.8, "plain_first": True, "warmup_steps": WARMUP}),
    "DiLoCo, waits": ("diloco-waiting", {"alpha": 1.0, "mu": 0.8, "plain_first": True, "warmup_steps": WARMUP}),
    "DDP, elastic": ("ddp-elastic", {}),
    "Decoupled DiLoCo": ("diloco-decoupled", DECOUPLED),
    SYNCER: ("diloco-decoupled", DECOUPLED),
}
"""method and options"""
DDP_FAST: Final = "DDP, elastic, 10 M parameters"
"""where its all-reduce costs it nothing"""
QUICK: Final[Mapping[str, int]] = {"width": 32, "blocks": 1, "context": 16, "held_out": 64}
"""a model for tests"""
SHORTER: Final = 10
"""factor of time of a quick run"""


def events_of(condition: str, seconds: float = SECONDS) -> tuple[Event, ...]:
    """The events of a condition, stretched from a run of 1,200 s to `seconds`."""
    unit, third = seconds / SECONDS, seconds / 3.0
    if condition == DIES:
        return (Event(host=AFFLICTED, kind="gone", begin=third),)
    if condition == PAUSES:
        return tuple(
            Event(host=AFFLICTED, kind="paused", begin=begin * unit, end=(begin + 120.0) * unit)
            for begin in (300.0, 900.0)
        )
    if condition == SLOW:
        return (Event(host=AFFLICTED, kind="slow", begin=third, share=0.1),)
    if condition == CHURN:
        random = np.random.default_rng(0)
        begins = [150.0 * number + float(random.uniform(-30.0, 30.0)) for number in range(1, PEERS)]
        hosts = random.permutation(PEERS)
        return tuple(
            Event(host=int(host), kind="gone", begin=begin * unit, end=(begin + REPLACED) * unit)
            for host, begin in zip(hosts, begins, strict=False)
        )
    return ()


def syncer_events_of(condition: str, seconds: float = SECONDS) -> tuple[Event, ...]:
    """What happens to the syncer too: what happens to the host, but another is ready 60 s after it dies."""
    if condition in (DIES, CHURN):
        begin = seconds / (3.0 if condition == DIES else 2.0)
        return (Event(host=0, kind="gone", begin=begin, end=begin + REPLACED * seconds / SECONDS),)
    return events_of(condition, seconds)


def _arms(scale: Scale) -> list[Arm]:
    quick = scale == "quick"
    seconds = SECONDS / SHORTER if quick else SECONDS
    every, warmup = (TRANSFORMER.every, WARMUP) if not quick else (TRANSFORMER.every // SHORTER, WARMUP // SHORTER)
    data = QUICK if quick else {}
    parameters = ByteTransformer(**data).parameters
    found = []
    for condition in CONDITIONS:
        ways = {label: (*way, AS_PARAMETERS) for label, way in WAYS.items()}
        ways[DDP_FAST] = (*WAYS["DDP, elastic"], FEWER_PARAMETERS)
        if condition in PRESENT:
            ways["DiLoCo, waits"] = ways["DiLoCo, quorum"]
        if scale == "full":
            ways |= {f"{label}, 10 M parameters": (*way, FEWER_PARAMETERS) for label, way in WAYS.items()}
        for label, (method, options, as_parameters) in ways.items():
            started = {**options, "warmup_steps": warmup} if "warmup_steps" in options else dict(options)
            if label.startswith(SYNCER):
                started["at_syncer"] = syncer_events_of(condition, seconds)
            setting = FailureSetting(
                peers=PEERS,
                every=every,
                rounds=int((seconds - started.get("warmup_steps", 0)) / every),
                lr=TRANSFORMER.lr,
                link=link(MEGABITS, MILLISECONDS, parameters, as_parameters),
                seconds=seconds,
                events=events_of(condition, seconds),
            )
            run = FailureRun(
                setting=setting,
                problem="byte-transformer",
                data=data,
                method=method,
                options=explicit_options(method, started),
            )
            found.append(Arm(condition, label, run))
    return found


def _read(results: Results) -> Findings:
    calm = results.groups[CALM]
    summary = [
        (
            label,
            *(_cell(outcomes[label], calm[label], told=group != CALM) for group, outcomes in results.groups.items()),
        )
        for label in calm
    ]
    tables = [
        Table(
            "Held-out loss of the finished model (behind the same method's where nothing goes wrong), and idle time",
            ("method", *results.groups),
            summary,
        ),
        *(_table(group, outcomes, calm) for group, outcomes in results.groups.items()),
    ]
    return Findings(tables, (), [seconds_graph(results.groups)], NOTES)


def _behind(outcome: Outcome, calm: Outcome) -> Figure:
    return outcome.finished_loss - calm.finished_loss


def _percent(outcome: Outcome, fact: str) -> str:
    return formatted(100.0 * outcome.fact(fact), 0, " %")


def _cell(outcome: Outcome, calm: Outcome, *, told: bool) -> str:
    behind = float(_behind(outcome, calm))
    added = f" ({behind:+.3f})" if told and math.isfinite(behind) else ""
    idle = formatted(float(100.0 * outcome.fact("idle")), 0, " %")
    return f"{formatted(float(outcome.finished_loss))}{added}, idle {idle}"


def _table(group: str, outcomes: Mapping[str, Outcome], calm: Mapping[str, Outcome]) -> Table:
    columns = (
        "method",
        *LOSSES[1:],
        "behind its own",
        "steps of a host",
        "idle, healthy hosts",
        f"idle, host {AFFLICTED}",
        "in steps that were lost",
        "bytes a parameter",
    )
    rows = [
        (
            label,
            *loss_cells(outcome)[1:],
            formatted(_behind(outcome, calm[label])),
            formatted(Figure(outcome.last(lambda point: point.steps)), 0),
            _percent(outcome, "idle, healthy"),
            _percent(outcome, f"idle, host {AFFLICTED}"),
            _percent(outcome, "lost"),
            formatted(outcome.bytes, 0),
        )
        for label, outcome in outcomes.items()
    ]
    return Table(f"{group[0].upper()}{group[1:]}", columns, rows)


NOTES: Final = (
    "Idle is the share of a host's time there in which it computes nothing. The time after its death, or of its pause, "
    "does not count. Computing whose steps were lost is no idle time and is shown beside it.",
    "The finished model is what a user holds at the end. Pairwise's run ends as by `gossipdp finish`: lookaheads are "
    "taken out, and the hosts that are there exchange until they hold their mean. No clock counts that. DiLoCo leaves "
    "its anchor, DDP its replica. Single replicas are measured before.",
    "A host is healthy if nothing happens to it. Under churn only one is.",
    "The last row's syncer has the events of the host too, but 60 s after its death another one takes its last "
    "checkpoint, and under churn it dies once. Other methods' coordinators do not fail here. Steps that Decoupled "
    "DiLoCo loses when a fragment arrives are not counted as lost.",
    "DDP's all-reduce lasts longer than a step with 100 million parameters. It is also shown with 10 million, where it "
    "fits behind the backward pass.",
)

SUITE = Suite(
    name="failures",
    question="Hosts die, pause and slow down: what does each method lose at equal time?",
    about=f"The transformer of B8, N = {PEERS}, {SECONDS:.0f} simulated seconds, steps of 1 s, H = "
    f"{TRANSFORMER.every}. The link carries as many bytes as a model of 100 million parameters would send at 1 "
    "Gbit/s. A host dies for good after a third of the run. Or it pauses for two minutes in every ten. Or its "
    "link has a tenth of its bandwidth from a third of the run on. Or a host dies every 150 s and another is "
    "ready in its place 60 s later, 20 % of the hosts in four minutes. All methods see the same events. The "
    "learning rate follows the clock, so it has fallen at the end whatever was lost. Pairwise has the daemon's "
    "defaults and its own warm start. DiLoCo has 4 bits, alpha 1, mu 0.8 (B8's best) and a warm start of the "
    f"same {WARMUP} steps. Its last round is as long as the time that is left. DDP sends bf16. The quorum "
    "follows torchft: hosts silent for 5 s are left out, late ones after 60 s. DiLoCo that waits, and DDP, run "
    "under torchrun: a failure or an arrival stops all, a dead host is noticed after 15 s, a rendezvous that is "
    "not full lasts 30 s, workers start in 30 s, DDP's checkpoints are at most 30 s apart and free. Decoupled DiLoCo "
    "sends 4 bits. Its syncer is on a host of its own, with a link like a host's and such checkpoints. A host that "
    "arrives copies the model and what the optimizer holds, over its link.",
    arms=_arms,
    read=_read,
)
