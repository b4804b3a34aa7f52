"""The warm start: how long, with which H afterwards, who starts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from simulations.suites.b1 import MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Graph,
    Line,
    Outcome,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    arms,
    mean,
    sized,
    told,
)

__all__ = ["SUITE"]

LENGTHS: Final = (0, 50, 100, 200, 400)
EVERY: Final = (10, 20, 50)
STEPS: Final = 1000
"""with those of the start"""
FOUNDED: Final = 200
"""steps of founders"""
FOUNDERS: Final = (1, 4, 16)
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
}
OWN: Final = "pairwise, its own"


def _group(length: int, every: int) -> str:
    return f"{length} steps, H = {every}"


def _who(founders: int) -> str:
    return f"{FOUNDED} steps by {founders}, H = {MLP.every}"


def _rounds(length: int, every: int) -> int:
    """What the start leaves of the steps."""
    return (STEPS - length) // every


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    quick = scale == "quick"
    for every in EVERY if not quick else (5,):
        for length in LENGTHS if not quick else (0, 5):
            setting = sized(replace(MLP, every=every, rounds=_rounds(length, every)), scale)
            warm = replace(setting, warmup=length)
            found += arms(_group(length, every), warm, WAYS)
            if length:
                found += arms(_group(length, every), setting, {OWN: ("pairwise", {"warmup_steps": length})})
    setting = sized(replace(MLP, rounds=_rounds(FOUNDED, MLP.every)), scale)
    for founders in FOUNDERS:
        data = {"of": "byte-mlp", "founders": founders, "steps": FOUNDED if not quick else 5, "lr": MLP.lr}
        found += arms(_who(founders), setting, WAYS, problem="started", data=data)
    return found


def _read(results: Results) -> Findings:
    found = {group: outcomes for group, outcomes in results.groups.items() if "by" not in group}
    labels = (*WAYS, OWN)
    rows = [
        (
            group,
            _steps(outcomes["pairwise"]),
            *(told(outcomes[label].losses) if label in outcomes else "-" for label in labels),
            f"{outcomes['pairwise'].bytes:.1f}",
            f"{outcomes[OWN].bytes:.1f}" if OWN in outcomes else "-",
        )
        for group, outcomes in found.items()
    ]
    columns = ("start", "steps in all", *labels, "bytes, pairwise after synchronous steps", "bytes, pairwise its own")
    table = Table("Loss by the length of the start and H after it", columns, rows)
    started = [
        (
            _who(founders),
            f"{FOUNDED} + {_steps(results[_who(founders), 'pairwise'])}",
            *(told(results[_who(founders), label].losses) for label in WAYS),
        )
        for founders in FOUNDERS
    ]
    who = Table(
        "Who starts",
        ("start", "steps", *WAYS),
        started,
        "These steps were made before the run, by so many peers on other data; their bytes are on nobody's account.",
    )
    panels: dict[str, dict[str, Line]] = {}
    for group, outcomes in found.items():
        length, every = int(group.split()[0]), group.rpartition(" ")[2]
        for label, outcome in outcomes.items():
            line = panels.setdefault(f"H = {every}", {}).setdefault(label, Line([], [], [], []))
            values = outcome.losses
            for side, value in (
                (line.x, float(length)),
                (line.y, mean(values)),
                (line.low, min(values, default=math.nan)),
                (line.high, max(values, default=math.nan)),
            ):
                assert isinstance(side, list)
                side.append(value)
    graph = Graph("length", "Loss against the length of the warm start", "steps", "held-out loss, nats", panels)
    return Findings([table, who], graphs=[graph])


def _steps(outcome: Outcome) -> str:
    return f"{mean(outcome.last(lambda point: point.steps)):.0f}"


SUITE = Suite(
    name="warmstart",
    question="How long a warm start, and who makes it?",
    about=f"The model of B1, N = 16, {STEPS:,} steps with those of the start, in whole rounds. The start: synchronous "
    "steps of all; or, as the daemon has it, short rounds with exchanges back to back (alpha 1, mu 0); or steps that "
    "few made before the others joined. The learning rate begins to fall when the start is over.",
    arms=_arms,
    read=_read,
)
