"""The warm start: how long it is, which H follows, and which peers make it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Graph, Line, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, Reported, formatted, mean, reported
from simulations.lab.suites.model import MLP
from simulations.lab.suites.tables import best

__all__ = ["SUITE"]

LENGTHS: Final = (0, 50, 100, 200, 400)
EVERY: Final = (10, 20, 50)
STEPS: Final = 1000
"""the steps of the start included"""
FOUNDED: Final = 200
"""steps of the founders"""
FOUNDERS: Final = (1, 4, 16)
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
}
OWN: Final = "pairwise, its own"
DEFAULT: Final = 200
"""steps, the daemon's default"""


def _group(length: int, every: int) -> str:
    return f"{length} steps, H = {every}"


def _who(founders: int) -> str:
    return f"{FOUNDED} steps by {founders}, H = {MLP.every}"


def _rounds(length: int, every: int) -> int:
    """Rounds left after the start."""
    return (STEPS - length) // every


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    quick = scale == "quick"
    for every in EVERY if not quick else (5,):
        for length in LENGTHS if not quick else (0, 5):
            setting = at_scale(replace(MLP, every=every, rounds=_rounds(length, every)), scale)
            warm = replace(setting, warmup=length)
            found += arms(_group(length, every), warm, WAYS)
            if length:
                found += arms(_group(length, every), setting, {OWN: ("pairwise", {"warmup_steps": length})})
    setting = at_scale(replace(MLP, rounds=_rounds(FOUNDED, MLP.every)), scale)
    for founders in FOUNDERS:
        data = {"of": "byte-mlp", "founders": founders, "steps": FOUNDED if not quick else 5, "lr": MLP.lr}
        found += arms(_who(founders), setting, WAYS, problem="started", data=data)
    return found


def _read(results: Results) -> Findings:
    found = {group: outcomes for group, outcomes in results.groups.items() if "by" not in group}
    labels = (*WAYS, OWN)

    def by_length(title: str, of: Callable[[Outcome], Figure], digits: int = 3) -> Table:
        rows = [
            (
                group,
                _steps(outcomes["pairwise"]),
                *(formatted(of(outcomes[label]), digits) if label in outcomes else "-" for label in labels),
            )
            for group, outcomes in found.items()
        ]
        return Table(f"{title} by the length of the start and H after it", ("start", "steps in all", *labels), rows)

    tables = [
        by_length("Loss", lambda outcome: outcome.loss),
        by_length("Loss of single replicas", lambda outcome: outcome.replica_loss),
        by_length("Bytes a parameter", lambda outcome: outcome.bytes, 1),
    ]
    founded = [
        (
            _who(founders),
            f"{FOUNDED} + {_steps(results[_who(founders), 'pairwise'])}",
            *(formatted(results[_who(founders), label].losses) for label in WAYS),
        )
        for founders in FOUNDERS
    ]
    who = Table(
        "Who starts",
        ("start", "steps", *WAYS),
        founded,
        "The founders made these steps before the run, on other data. Their bytes are not counted.",
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
    return Findings([*tables, who], graphs=[graph], reported=_default(found))


def _default(found: Mapping[str, Mapping[str, Outcome]]) -> list[Reported]:
    """How much better another length would have been, by H."""
    figures = []
    for every in EVERY:
        by_length = {length: found.get(_group(length, every), {}) for length in LENGTHS if length}
        own = {f"{length} steps": those[OWN] for length, those in by_length.items() if OWN in those}
        if f"{DEFAULT} steps" in own:
            ours, longest = own[f"{DEFAULT} steps"], best(own)
            name = f"H = {every}, its own: the default, {DEFAULT} steps, above the best ({longest}), nats"
            replicas = ours.replica_loss - own[longest].replica_loss
            figures.append(reported(name, ours.loss - own[longest].loss, replicas=replicas))
    return figures


def _steps(outcome: Outcome) -> str:
    return f"{mean(outcome.last(lambda point: point.steps)):.0f}"


SUITE = Suite(
    name="warmstart",
    question="How long a warm start, and who makes it?",
    about=f"The model of B1, N = 16, {STEPS:,} steps with those of the start, in whole rounds. The start is one of "
    "three. Synchronous steps of all peers. Short rounds with exchanges back to back (alpha 1, mu 0), as in "
    "the daemon. Or steps that a few founders made before the others joined. After synchronous steps all "
    "peers have moments of Adam, and a joiner of the daemon inherits them; after the founders' steps they "
    "have none. The learning rate begins to fall when the start is over.",
    arms=_arms,
    read=_read,
)
