"""At equal time: where each method stands, on three links, with equal and with unequal hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simulations.lab_clock import lasting
from simulations.lab_problems import ByteMlp
from simulations.lab_runs import Run, link
from simulations.suites.b1 import EPIDEMIC, MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Outcome,
    Results,
    Scale,
    Suite,
    Table,
    arms,
    curves_table,
    in_time,
    mean,
    reported,
    seconds_graph,
    sized,
    told,
)

__all__ = ["SUITE"]

LINKS: Final = {
    "10 M parameters, 1 Gbit/s": (1000.0, 1.0, 1e7),
    "100 M, 1 Gbit/s": (1000.0, 1.0, 1e8),
    "100 M, 100 Mbit/s": (100.0, 40.0, 1e8),
    "100 M, 50 Mbit/s": (50.0, 40.0, 1e8),
}
SPEEDS: Final = {"equal": (1.0,), "1:2:4": (1.0, 2.0, 4.0)}
PEERS: Final = 8
SECONDS: Final = 1600.0
WAYS: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "pairwise": ("pairwise", {}, 20),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}, 20),
    "epidemic k=128": ("epidemic", EPIDEMIC, 20),
    "DDP": ("ddp", {}, 20),
    "DiLoCo fp32, H 20": ("diloco", {"mu": 0.8}, 20),
    "DiLoCo fp32, H 80": ("diloco", {"mu": 0.8}, 80),
    "DiLoCo fp32, H 320": ("diloco", {"mu": 0.8}, 320),
    "DiLoCo 4-bit, H 20": ("diloco-4bit", {"mu": 0.8}, 20),
    "DiLoCo 4-bit, overlapped, H 20": ("diloco-4bit-overlapped", {"mu": 0.8}, 20),
    "DiLoCo fp32, overlapped, H 80": ("diloco-overlapped", {"mu": 0.8}, 80),
}
PACED: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "DiLoCo fp32, own pace, H 80": ("diloco", {"mu": 0.8, "own_pace": True}, 80),
    "DiLoCo 4-bit, overlapped, own pace, H 20": ("diloco-4bit-overlapped", {"mu": 0.8, "own_pace": True}, 20),
}
"""where hosts are unequal: nobody idles, as with pairwise"""
FIELD: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "local SGD, H 80": ("local-sgd", {}, 80),
    "NoLoCo, H 20": ("noloco", {"alpha": 0.3, "beta": 0.7, "gamma": 0.9}, 20),
    "SparseLoCo, H 20": ("sparseloco", {"compressor": "topk128", "alpha": 2.0}, 20),
    "DeMo": ("demo", {}, 20),
    "SPARTA": ("sparta", {}, 20),
    "D-PSGD exponential, local, H 20": ("d-psgd-exponential-local", {}, 20),
    "SGP, local, H 20": ("sgp-local", {}, 20),
    "CHOCO, local, H 20": ("choco-local", {}, 20),
    "AD-PSGD": ("ad-psgd", {}, 20),
    "SwarmSGD, H 20": ("swarm", {}, 20),
    "GASLoC, H 20": ("gasloc", {}, 20),
    "parameter server": ("server", {}, 20),
    "parameter server, asynchronous": ("server-async", {}, 20),
    "local only": ("local-only", {}, 20),
}
"""the rest, on the links of `AS_PARAMETERS`"""
AS_PARAMETERS: Final = 1e8
LABELS: Final = (*WAYS, *PACED, *FIELD)
OURS: Final = ("pairwise", "pairwise, one exchange a round", "epidemic k=128")
OTHERS: Final = tuple(label for label in LABELS if label not in OURS)
FREE: Final = {"AD-PSGD", "SwarmSGD, H 20", "GASLoC, H 20", "parameter server, asynchronous", "local only"}
"""who waits for nobody"""
WAITING: Final = tuple(label for label in OTHERS if "overlapped" not in label and label not in FREE)


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    parameters = ByteMlp().parameters
    for told_link, (megabits, milliseconds, as_parameters) in LINKS.items():
        for told_speeds, speeds in SPEEDS.items():
            group = f"{told_link}, {told_speeds}"
            there = link(megabits, milliseconds, parameters, as_parameters)
            base = replace(sized(replace(MLP, peers=PEERS), scale), speeds=speeds, link=there, evaluate_every=1)
            seconds = SECONDS if scale != "quick" else 40.0
            ways = WAYS if len(speeds) == 1 else WAYS | PACED
            if as_parameters == AS_PARAMETERS and scale != "quick":
                ways = ways | FIELD
            for label, (method, options, every) in ways.items():
                run = Run(setting=replace(base, every=every), method=method, options=options)
                found += arms(group, lasting(seconds, run, parameters), {label: (method, options)})
    return found


def _read(results: Results) -> Findings:
    bests: dict[str, str] = {}
    losses, steps, figures = [], [], []
    labels = [label for label in LABELS if any(label in outcomes for outcomes in results.groups.values())]
    for group, outcomes in results.groups.items():
        fair = in_time(outcomes, "pairwise")
        best, ours = _best(fair, tuple(fair)), _best(fair, OURS)
        for whom in (WAITING, OTHERS):
            other = _best(fair, whom)
            ahead = fair[other].loss - fair[ours].loss
            kind = "that waits" if whom is WAITING else "not of this project"
            figures.append(reported(f"{group}: {ours} below the best {kind} ({other}), nats", ahead))
        bests[group] = best
        losses.append([_loss(fair, outcomes, label) for label in labels])
        steps.append([_steps(outcomes, label) for label in labels])
    tables = [
        Table(title, ("method", *results.groups), [(label, *row) for label, *row in zip(labels, *told, strict=True)])
        for title, told in (
            (f"Held-out loss after {SECONDS:.0f} simulated seconds", losses),
            ("Inner steps of a peer in that time, mean, and rounds of how many (of a peer of speed 1)", steps),
        )
    ]
    wins = [f"{group} ({best})" for group, best in bests.items() if best in WAITING]
    notes = [
        f"Best of all: {'; '.join(f'{best} on {group}' for group, best in bests.items())}.",
        f"A method that waits for others is the best on: {'; '.join(wins) or 'none of these'}.",
        "Whom pairwise has to beat is DiLoCo overlapped, at 4 bits, and with unequal hosts at its own pace: it waits "
        "for as little, as long as all take part in every round.",
    ]
    drawn = {
        group: {label: outcome for label, outcome in outcomes.items() if label not in FIELD}
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


def _loss(fair: Mapping[str, Outcome], outcomes: Mapping[str, Outcome], label: str) -> str:
    if label in fair:
        return told(fair[label].losses)
    return "not one round" if label in outcomes else "-"


def _steps(outcomes: Mapping[str, Outcome], label: str) -> str:
    if label not in outcomes:
        return "-"
    outcome = outcomes[label]
    steps = mean(outcome.last(lambda point: point.steps))
    return f"{steps:.0f}: {outcome.setting.rounds} of {outcome.setting.every}"


def _best(outcomes: Mapping[str, Outcome], labels: Sequence[str]) -> str:
    return min((label for label in labels if label in outcomes), key=lambda label: outcomes[label].loss)


SUITE = Suite(
    name="clock",
    question="At equal time, where does each method stand?",
    about=f"The model of B1, N = {PEERS}, steps of 1 s on the slowest host, {SECONDS:.0f} simulated seconds; each "
    "method plays whole rounds that fill the time to 2 %, of the H nearest to the one in its name, 20 where there is "
    "none (fewer of methods a few of whose steps fill it), and its learning rate falls over them, step by step. "
    "Links carry as many bytes as a model of 10 or 100 million parameters would send. Only the ratio of bytes"
    " to bandwidth counts: 100 M on 1 Gbit/s is also 10 M on 100 Mbit/s, and a billion on 10 Gbit/s.",
    arms=_arms,
    read=_read,
)
