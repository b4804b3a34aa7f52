"""Equal time: where each method stands on four links, with equal and unequal hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from simulations.lab.problems import ByteMlp
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import Run, link
from simulations.lab.suites.arms import arms, at_scale, with_short_start
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, Reported, reported
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.model import MLP, RATES, START, WARMUP, Clocked, diloco
from simulations.lab.suites.tables import best, in_time, loss_cells

__all__ = ["SUITE"]

FAST: Final = "10 M parameters, 1 Gbit/s"
LINKS: Final = {
    FAST: (1000.0, 1.0, 1e7),
    "100 M, 1 Gbit/s": (1000.0, 1.0, 1e8),
    "100 M, 100 Mbit/s": (100.0, 40.0, 1e8),
    "100 M, 50 Mbit/s": (50.0, 40.0, 1e8),
}
"""Mbit/s, milliseconds one way, parameters"""
GIGABIT: Final = 1000.0
SPEEDS: Final = {"equal": (1.0,), "1:2:4": (1.0, 2.0, 4.0)}
PEERS: Final = 8
SECONDS: Final = 1360.0
"""chosen so that whole steps of DDP fill the time on each link"""
OURS: Final = f"pairwise, {START}"
STARTED: Final = {"warmup_steps": WARMUP}
DECOUPLED: Final = {"bits": 4, "radial": False, "quorum": 4, "syncers": PEERS, **STARTED}
"""the best of those tried with seed 0; alpha and mu are those of all forms of DiLoCo here"""
SYNCERS: Final = f"Decoupled DiLoCo, {PEERS} syncers, {START}"
HALVED: Final = f"{SYNCERS}, half its rate"
"""with unequal hosts, where fast ones weigh more"""
WAYS: Final[Clocked] = {
    "pairwise": ("pairwise", {}, 20),
    OURS: ("pairwise", STARTED, 20),
    "DDP": ("ddp", {}, 20),
    "DDP, bf16": ("ddp", {"half": True}, 20),
    "DiLoCo fp32, H 80": ("diloco", {}, 80),
    "DiLoCo 4-bit, H 20": ("diloco-4bit", {}, 20),
    "DiLoCo 4-bit, H 80": ("diloco-4bit", {}, 80),
    "DiLoCo 4-bit, overlapped, H 20": ("diloco-4bit-overlapped", {}, 20),
    "SparseLoCo, H 20": ("sparseloco", {}, 20),
    SYNCERS: ("diloco-decoupled", DECOUPLED, 20),
    "local only": ("local-only", {}, 20),
}
EQUAL: Final[Clocked] = {
    f"DiLoCo 4-bit, H 20, {START}": ("diloco-4bit", STARTED, 20),
    f"DiLoCo 4-bit, overlapped, H 20, {START}": ("diloco-4bit-overlapped", STARTED, 20),
}
"""more with equal hosts: rivals with a warm start like pairwise's"""
UNEQUAL: Final[Clocked] = {
    "pairwise, all as many steps": ("pairwise", {"own_pace": False}, 20),
    f"DiLoCo 4-bit, own pace, H 20, {START}": ("diloco-4bit", {"own_pace": True, **STARTED}, 20),
    f"DiLoCo 4-bit, overlapped, own pace, H 20, {START}": (
        "diloco-4bit-overlapped",
        {"own_pace": True, **STARTED},
        20,
    ),
}
"""more with unequal hosts: rivals whose fast hosts make more steps, and pairwise whose do not"""
LABELS: Final = (*WAYS, HALVED, *EQUAL, *UNEQUAL)
ONCE: Final = ("SparseLoCo, H 20", SYNCERS, HALVED, "pairwise, all as many steps")
"""with one seed"""
OTHERS: Final = tuple(label for label in LABELS if not label.startswith("pairwise"))
FREE: Final = (SYNCERS, HALVED, "local only")
"""methods that wait for no other peer"""
RIVALS: Final = {
    "best of all that wait": tuple(label for label in OTHERS if "overlapped" not in label and label not in FREE),
    "best of all": OTHERS,
}


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    parameters = ByteMlp().parameters
    for told_link, (megabits, milliseconds, as_parameters) in LINKS.items():
        if scale == "quick" and megabits < GIGABIT:
            continue
        for told_speeds, speeds in SPEEDS.items():
            group = f"{told_link}, {told_speeds}"
            there = link(megabits, milliseconds, parameters, as_parameters)
            base = replace(at_scale(replace(MLP, peers=PEERS), scale), speeds=speeds, link=there, evaluate_every=1)
            seconds = SECONDS if scale != "quick" else 40.0
            for label, (method, given, every) in {**WAYS, **(EQUAL if len(speeds) == 1 else UNEQUAL)}.items():
                options = with_short_start(given, scale)
                run = Run(setting=replace(base, every=every), method=method, options=options)
                setting = setting_in_time(seconds, run, parameters)
                more = diloco(setting.rounds, PEERS) | options if method.startswith("diloco") else options
                seeds = 1 if label in ONCE else None
                found += arms(group, setting, {label: (method, more)}, rates=RATES, seeds=seeds)
                if len(speeds) > 1 and label == SYNCERS:
                    found += arms(group, setting, {HALVED: (method, more)}, rates={method: 0.5}, seeds=1)
    return found


def _read(results: Results) -> Findings:
    cells: list[list[list[str]]] = [[], [], []]
    figures: list[Reported] = []
    labels = [label for label in LABELS if any(label in outcomes for outcomes in results.groups.values())]
    steps = []
    for group, outcomes in results.groups.items():
        fair = in_time(outcomes, "pairwise")
        figures += [_ahead(group, fair, kind, rivals) for kind, rivals in RIVALS.items()]
        for place, table in enumerate(cells):
            table.append([_loss(fair, outcomes, label, place) for label in labels])
        steps.append([_steps(outcomes, label) for label in labels])
    losses, singles, finished = ([*zip(labels, *columns, strict=True)] for columns in cells)
    tables = [
        Table(title, ("method", *results.groups), rows)
        for title, rows in (
            (f"Held-out loss after {SECONDS:.0f} simulated seconds, of the mean of the replicas", losses),
            ("The same, of single replicas, where it differs", _other(singles, losses)),
            ("The same, of the finished model, where it differs", _other(finished, losses)),
            (
                "Inner steps of a peer in that time, mean, and rounds of how many (of a peer of speed 1)",
                [*zip(labels, *steps, strict=True)],
            ),
        )
    ]
    panels = {group: outcomes for group, outcomes in results.groups.items() if group.endswith("equal")}
    unequal = {group: outcomes for group, outcomes in results.groups.items() if group not in panels}
    graphs = [
        replace(seconds_graph(panels, "Loss against simulated wall clock, equal hosts"), name="equal"),
        replace(seconds_graph(unequal, "Loss against simulated wall clock, hosts 1:2:4"), name="unequal"),
    ]
    return Findings(tables, (), graphs, NOTES, figures)


def _other(rows: Sequence[tuple[str, ...]], first: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [row for row in rows if row not in first]


NOTES: Final = (
    f"Without a mark: {OURS}, against others, in nats of finished models.",
    "No peer holds the mean of the replicas, and no clock counts its averaging, nor the exchanges that end a run. "
    "Pairwise's run ends as by `gossipdp finish`. Local only shows the model of the first, slowest peer.",
    "Decoupled DiLoCo's syncer is on hosts of its own, as many as there are peers. Each has a link like a peer's. The "
    f"syncers together receive {PEERS} times the bytes of a peer, and send as many.",
    "Methods without a warm start in their name begin cold.",
)


def _ahead(group: str, fair: Mapping[str, Outcome], kind: str, rivals: tuple[str, ...]) -> Reported:
    other = best(fair, [label for label in rivals if label in fair])
    name = f"{group}: below the {kind} ({other})"
    return reported(name, fair[other].finished_loss - fair[OURS].finished_loss)


def _loss(fair: Mapping[str, Outcome], outcomes: Mapping[str, Outcome], label: str, place: int) -> str:
    if label in fair:
        return loss_cells(fair[label])[place]
    return "not one round" if label in outcomes else "-"


def _steps(outcomes: Mapping[str, Outcome], label: str) -> str:
    if label not in outcomes:
        return "-"
    outcome = outcomes[label]
    steps = Figure(outcome.last(lambda point: point.steps))
    return f"{steps:.0f}: {outcome.setting.rounds} of {outcome.setting.every}"


SUITE = Suite(
    name="clock",
    question="At equal time, where does each method stand?",
    about=f"The byte-level MLP, N = {PEERS}, steps of 1 s on the slowest host, {SECONDS:.0f} simulated seconds. Each "
    "method plays whole rounds that fill the time to 2 % (DDP in bf16 to 4 %), with the H nearest to the one "
    "in its name, or to 20. Methods that need most of the time for a few steps have a smaller H. Each method "
    "has its own learning rate, which falls over its rounds, step by step. DiLoCo's mu is 0.6, which was better "
    f"than 0.8 for {PEERS} peers. Pairwise has the daemon's. A warm start is a method's own: "
    f"{WARMUP} steps in short rounds, or as long as an exchange, with alpha 1 and mu 0, within its time. Links carry "
    "as many bytes as a model of "
    f"10 or 100 million parameters would send. The latency is {LINKS[FAST][1]:.0f} ms one way at 1 Gbit/s, and "
    "40 ms at 100 and 50 Mbit/s. Apart from it only the ratio of bytes to bandwidth counts: 100 M on 1 Gbit/s "
    "is also 10 M on 100 Mbit/s, and a billion on 10 Gbit/s.",
    arms=_arms,
    read=_read,
)
