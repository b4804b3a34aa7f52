"""Equal time: where each method stands on three links, with equal and unequal hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from simulations.lab.problems import ByteMlp
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import OWN_PACE, Run, link
from simulations.lab.suites.arms import arms, at_scale, with_short_start
from simulations.lab.suites.b4 import ALIKE, OURS_ALIKE, START
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Reported, mean, reported
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.model import MLP, SPARSELOCO, WARMUP, diloco
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import best, curves_table, in_time, loss_cells

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
DECOUPLED: Final = {"bits": 4, "radial": False, "quorum": 4}
"""the best of those tried with seed 0; alpha and mu are those of all forms of DiLoCo here"""
SPEEDS: Final = {"equal": (1.0,), "1:2:4": (1.0, 2.0, 4.0)}
PEERS: Final = 8
SECONDS: Final = 1360.0
"""chosen so that whole steps of DDP fill the time on each link"""
Clocked: TypeAlias = dict[str, tuple[str, dict[str, Any], int]]
OWN: Final = f"pairwise, {START}"
SYNCERS: Final = f"Decoupled DiLoCo, {PEERS} syncers"
WAYS: Final[Clocked] = {
    "pairwise": ("pairwise", {}, 20),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}, 20),
    OWN: ("pairwise", {"warmup_steps": WARMUP}, 20),
    "pairwise, H 50": ("pairwise", {}, 50),
    "DDP": ("ddp", {}, 20),
    "DDP, bf16": ("ddp", {"half": True}, 20),
    **ALIKE,
    "DiLoCo fp32, overlapped, H 80": ("diloco-overlapped", {}, 80),
    "DiLoCo 4-bit, overlapped, H 80": ("diloco-4bit-overlapped", {}, 80),
}
PACED: Final[Clocked] = {
    "DiLoCo fp32, own pace, H 20": ("diloco", {"own_pace": True}, 20),
    "DiLoCo fp32, own pace, H 80": ("diloco", {"own_pace": True}, 80),
    "DiLoCo 4-bit, own pace, H 20": ("diloco-4bit", {"own_pace": True}, 20),
    "DiLoCo 4-bit, own pace, H 80": ("diloco-4bit", {"own_pace": True}, 80),
    "DiLoCo fp32, overlapped, own pace, H 80": ("diloco-overlapped", {"own_pace": True}, 80),
    "DiLoCo 4-bit, overlapped, own pace, H 20": ("diloco-4bit-overlapped", {"own_pace": True}, 20),
    "DiLoCo 4-bit, overlapped, own pace, H 80": ("diloco-4bit-overlapped", {"own_pace": True}, 80),
    **OURS_ALIKE,
}
"""variants for unequal hosts: rivals that do not wait, as pairwise, and pairwise that waits"""
STARTED: Final[Clocked] = {
    f"DiLoCo fp32, H 20, {START}": ("diloco", {"warmup_steps": WARMUP}, 20),
    f"DiLoCo 4-bit, H 20, {START}": ("diloco-4bit", {"warmup_steps": WARMUP}, 20),
    f"DiLoCo 4-bit, overlapped, H 20, {START}": ("diloco-4bit-overlapped", {"warmup_steps": WARMUP}, 20),
}
"""rivals with the warm start of pairwise"""
STARTED_PACED: Final[Clocked] = {
    f"DiLoCo 4-bit, own pace, H 20, {START}": ("diloco-4bit", {"own_pace": True, "warmup_steps": WARMUP}, 20),
    f"DiLoCo 4-bit, overlapped, own pace, H 20, {START}": (
        "diloco-4bit-overlapped",
        {"own_pace": True, "warmup_steps": WARMUP},
        20,
    ),
}
"""the same for unequal hosts"""
SHORT: Final[Clocked] = {
    "DiLoCo fp32, own pace, H 5": ("diloco", {"own_pace": True}, 5),
    "DiLoCo 4-bit, own pace, H 5": ("diloco-4bit", {"own_pace": True}, 5),
    "DiLoCo 4-bit, overlapped, own pace, H 5": ("diloco-4bit-overlapped", {"own_pace": True}, 5),
}
"""the same at 1 Gbit/s"""
QUICK: Final[Clocked] = {
    "pairwise, H 5": ("pairwise", {}, 5),
    "DiLoCo fp32, H 5": ("diloco", {}, 5),
    "DiLoCo fp32, overlapped, H 20": ("diloco-overlapped", {}, 20),
    "DiLoCo 4-bit, H 5": ("diloco-4bit", {}, 5),
    "DiLoCo 4-bit, overlapped, H 5": ("diloco-4bit-overlapped", {}, 5),
}
"""at 1 Gbit/s"""
FIELD: Final[Clocked] = {
    "local SGD, H 80": ("local-sgd", {}, 80),
    "NoLoCo, H 20": ("noloco", {"alpha": 0.7, "beta": 0.7, "gamma": 0.7}, 20),
    "SparseLoCo, H 20": ("sparseloco", SPARSELOCO, 20),
    "DeMo": ("demo", {"lr": 0.016}, 20),
    "DeMo k=32": ("demo", {"coefficients": 32, "lr": 0.016}, 20),
    "DeMo k=8": ("demo", {"coefficients": 8, "lr": 0.008}, 20),
    "SPARTA": ("sparta", {}, 20),
    "D-PSGD exponential, local, H 20": ("d-psgd-exponential-local", {}, 20),
    "SGP, local, H 20": ("sgp-local", {}, 20),
    "CHOCO, local, H 20": ("choco-local", {"gamma": 0.8}, 20),
    "D-PSGD exponential": ("d-psgd-exponential", {}, 20),
    "SGP": ("sgp", {}, 20),
    "CHOCO": ("choco", {"gamma": 0.8}, 20),
    "AD-PSGD": ("ad-psgd", {}, 20),
    "SwarmSGD, H 20": ("swarm", {}, 20),
    "GASLoC, H 20": ("gasloc", {}, 20),
    "parameter server": ("server", {}, 20),
    "parameter server, asynchronous": ("server-async", {}, 20),
    "Decoupled DiLoCo, H 20": ("diloco-decoupled", DECOUPLED, 20),
    SYNCERS: ("diloco-decoupled", {**DECOUPLED, "syncers": PEERS}, 20),
    f"{SYNCERS}, {START}": ("diloco-decoupled", {**DECOUPLED, "syncers": PEERS, "warmup_steps": WARMUP}, 20),
    "local only": ("local-only", {}, 20),
}
"""the other methods; D-PSGD, SGP and CHOCO exchange in every step and once a round"""
LONG: Final[Clocked] = {
    f"{label.removesuffix(', H 20')}, H 80": (method, options, 80)
    for label, (method, options, _) in FIELD.items()
    if label.endswith(", H 20")
}
"""those of them that exchange once a round, for slow links"""
HALVED: Final = {
    label: f"{label}, half its rate"
    for label in (
        *("AD-PSGD", "SwarmSGD, H 20", "SwarmSGD, H 80", "parameter server, asynchronous"),
        *(label for label in FIELD if label.startswith("Decoupled DiLoCo")),
    )
}
"""methods that do not wait, and whose rate is above pairwise's with equal hosts, or whose fast hosts weigh more; with
unequal hosts half of it is played too
"""
LABELS: Final = (*WAYS, *QUICK, *PACED, *SHORT, *STARTED, *STARTED_PACED, *FIELD, *LONG, *HALVED.values())
DRAWN: Final = (
    "pairwise",
    OWN,
    "DDP",
    "DDP, bf16",
    "DiLoCo fp32, H 80",
    "DiLoCo 4-bit, H 20",
    "DiLoCo 4-bit, H 80",
    "DiLoCo 4-bit, overlapped, H 20",
    f"DiLoCo 4-bit, overlapped, H 20, {START}",
    "DiLoCo fp32, own pace, H 80",
    "DiLoCo 4-bit, own pace, H 20",
    f"DiLoCo 4-bit, own pace, H 20, {START}",
    f"DiLoCo 4-bit, overlapped, own pace, H 20, {START}",
    f"{SYNCERS}, {START}",
)
"""not all methods, so that single lines can be seen"""
OURS: Final = tuple(label for label in LABELS if label.startswith("pairwise"))
OTHERS: Final = tuple(label for label in LABELS if label not in OURS)
FREE: Final = {label for label, (method, *_) in {**FIELD, **LONG}.items() if method in OWN_PACE} | {*HALVED.values()}
"""a method that waits for no other peer"""
ALL_REDUCE: Final = tuple(label for label in OTHERS if label.startswith(("DDP", "DiLoCo", "local SGD")))
WAITING: Final = tuple(label for label in OTHERS if "overlapped" not in label and label not in FREE)
RIVALS: Final = {
    "all-reduce (DDP, DiLoCo in all its forms, local SGD)": ALL_REDUCE,
    "that waits, for all peers or for a partner": WAITING,
    "not of this project": OTHERS,
}
NEAR: Final = 0.01
"""nats within which two methods count as equal"""


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
            ways = WAYS | (STARTED if len(speeds) == 1 else PACED | STARTED_PACED)
            if megabits >= GIGABIT:
                ways = ways | QUICK if len(speeds) == 1 else ways | QUICK | SHORT
            if scale != "quick":
                ways |= FIELD if megabits >= GIGABIT else FIELD | LONG
            for label, (method, options, every) in ways.items():
                options = with_short_start(options, scale)
                run = Run(setting=replace(base, every=every), method=method, options=options)
                setting = setting_in_time(seconds, run, parameters)
                more = diloco(setting.rounds, PEERS) | options if method.startswith("diloco") else options
                found += arms(group, setting, {label: (method, more)}, rates=RATES)
                if len(speeds) > 1 and label in HALVED:
                    halved = {method: RATES.get(method, 1.0) / 2.0}
                    found += arms(group, setting, {HALVED[label]: (method, more)}, rates=halved)
    return found


def _read(results: Results) -> Findings:
    bests: dict[str, list[str]] = {}
    losses: list[list[str]] = []
    singles: list[list[str]] = []
    finished: list[list[str]] = []
    steps, figures = [], []
    labels = [label for label in LABELS if any(label in outcomes for outcomes in results.groups.values())]
    for group, outcomes in results.groups.items():
        fair = in_time(outcomes, "pairwise")
        cold = [label for label in fair if START not in label]
        ours = best(fair, [label for label in OURS if label in cold])
        for kind, rivals in RIVALS.items():
            figures.append(_ahead(f"{group}, all cold", fair, ours, kind, [label for label in rivals if label in cold]))
            if OWN in fair:
                some = [label for label in rivals if label in fair]
                figures.append(_ahead(f"{group}, own start against any", fair, OWN, kind, some))
        bests[group] = _nearest(fair)
        for place, cells in enumerate((losses, singles, finished)):
            cells.append([_loss(fair, outcomes, label, place) for label in labels])
        steps.append([_steps(outcomes, label) for label in labels])
    tables = [
        Table(title, ("method", *results.groups), [(label, *row) for label, *row in zip(labels, *cells, strict=True)])
        for title, cells in (
            (f"Held-out loss after {SECONDS:.0f} simulated seconds, of the mean of the replicas", losses),
            ("The same, of single replicas", singles),
            ("The same, of the finished model: pairwise's run ends as by `gossipdp finish`", finished),
            ("Inner steps of a peer in that time, mean, and rounds of how many (of a peer of speed 1)", steps),
        )
    ]
    wins = [
        f"{group} ({', '.join(found)})"
        for group, those in bests.items()
        if (found := [x for x in those if x in WAITING])
    ]
    notes = [
        f"Best of all, and what is within {NEAR} nats of it: "
        f"{'; '.join(f'{group}: ' + ', '.join(those) for group, those in bests.items())}.",
        f"A method that waits for others is among them on: {'; '.join(wins) or 'none of these'}.",
        "The rival of pairwise is overlapped DiLoCo at 4 bits, with unequal hosts at its own pace. It waits as "
        "little, while all peers take part in every round.",
        "No peer holds the mean of the replicas, and no clock counts its averaging, nor the exchanges that end a run. "
        "Methods whose replicas are further apart gain more by them. For synchronous methods all losses are equal. "
        "Local only shows the model of the first, slowest peer, and a mean of a few single replicas.",
        "The pictures show some of the methods.",
        "Decoupled DiLoCo's syncer is on hosts of its own, one or as many as there are peers. Each has a link like a "
        f"peer's. The syncers together receive {PEERS} times the bytes of a peer, and send as many.",
        "NoLoCo waits for both vectors that it sends. One of them, the anchors, could travel while its peers compute.",
        "Pairwise's own start never waits. Some forms of DiLoCo have one like it. All other methods begin cold and "
        "are compared with cold starts of the project's methods. Pairwise from its own start is also compared with "
        "all.",
    ]
    drawn = {
        group: {label: outcomes[label] for label in DRAWN if label in outcomes}
        for group, outcomes in results.groups.items()
    }
    panels = {group: outcomes for group, outcomes in drawn.items() if group.endswith("equal")}
    unequal = {group: outcomes for group, outcomes in drawn.items() if group not in panels}
    graphs = [
        replace(seconds_graph(panels, "Loss against simulated wall clock, equal hosts"), name="equal"),
        replace(seconds_graph(unequal, "Loss against simulated wall clock, hosts 1:2:4"), name="unequal"),
    ]
    tables += [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, (), graphs, notes, figures)


def _ahead(where: str, fair: Mapping[str, Outcome], ours: str, kind: str, labels: Sequence[str]) -> Reported:
    other = best(fair, labels)
    name = f"{where}: {ours} below the best {kind} ({other}), nats"
    replicas = fair[other].replica_loss - fair[ours].replica_loss
    return reported(name, fair[other].loss - fair[ours].loss, replicas=replicas)


def _nearest(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Labels of the least loss and of all within `NEAR` of it, the best first."""
    least = outcomes[best(outcomes)].loss
    return sorted(
        (label for label in outcomes if outcomes[label].loss <= least + NEAR), key=lambda label: outcomes[label].loss
    )


def _loss(fair: Mapping[str, Outcome], outcomes: Mapping[str, Outcome], label: str, place: int) -> str:
    if label in fair:
        return loss_cells(fair[label])[place]
    return "not one round" if label in outcomes else "-"


def _steps(outcomes: Mapping[str, Outcome], label: str) -> str:
    if label not in outcomes:
        return "-"
    outcome = outcomes[label]
    steps = mean(outcome.last(lambda point: point.steps))
    return f"{steps:.0f}: {outcome.setting.rounds} of {outcome.setting.every}"


SUITE = Suite(
    name="clock",
    question="At equal time, where does each method stand?",
    about=f"The model of B1, N = {PEERS}, steps of 1 s on the slowest host, {SECONDS:.0f} simulated seconds. Each "
    "method plays whole rounds that fill the time to 2 % (DDP in bf16 to 4 %), with the H nearest to the one "
    "in its name, or to 20. Methods that need most of the time for a few steps have a smaller H. Each method "
    "has its own learning rate (B1), which falls over its rounds, step by step. DiLoCo's mu is 0.6, which B4 "
    f"and B9 found better than 0.8 for {PEERS} peers. Pairwise has the daemon's. A warm start is a method's own: "
    f"{WARMUP} steps in rounds of five, or as long as an exchange, with alpha 1 and mu 0, within its time. Links carry "
    "as many bytes as a model of "
    f"10 or 100 million parameters would send. The latency is {LINKS[FAST][1]:.0f} ms one way at 1 Gbit/s, and "
    "40 ms at 100 and 50 Mbit/s. Apart from it only the ratio of bytes to bandwidth counts: 100 M on 1 Gbit/s "
    "is also 10 M on 100 Mbit/s, and a billion on 10 Gbit/s.",
    arms=_arms,
    read=_read,
)
