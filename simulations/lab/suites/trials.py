"""Changes to `pairwise` that were tried and are not in the product: rotation, outliers, momentum, groups of peers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simulations.lab.problems import ByteMlp
from simulations.lab.runs.runs import link
from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Check, check, formatted, mean
from simulations.lab.suites.graphs import bytes_graph
from simulations.lab.suites.model import MLP
from simulations.lab.suites.tables import LOSSES, best, loss_cells

__all__ = ["SUITE"]

BASE: Final = "pairwise"
EXCHANGES: Final[dict[str, dict[str, Any]]] = {
    "one exchange a round": {"early": 0.0, "exchanges": 1},
    "three in early rounds, then two": {},
}
WRAPPED: Final[Ways] = {
    BASE: ("pairwise", {}),
    "fp32": ("pairwise", {"codec": "fp32"}),
    "rotated": ("pairwise-rotated", {}),
    "2 outliers a block and side exact": ("pairwise-outliers", {}),
    "8 outliers": ("pairwise-outliers", {"count": 8}),
    "4 bits": ("pairwise", {"bits": 4}),
    "4 bits, rotated": ("pairwise-rotated", {"bits": 4}),
    "4 bits, 2 outliers": ("pairwise-outliers", {"bits": 4}),
    "a quarter of the momentum": ("pairwise-momentum", {}),
    "all of the momentum": ("pairwise-momentum", {"parts": 1}),
    "all of the momentum, kappa 0": ("pairwise-momentum", {"parts": 1, "kappa": 0.0}),
}
"""each with every number of exchanges"""
FREE: Final = ", no clipping"
"""ends the labels of twins without clipping, because groups and momenta are never clipped"""
TWINS: Final[Ways] = {
    label + FREE: (WRAPPED[label][0], {**WRAPPED[label][1], "clip": math.inf}) for label in (BASE, "4 bits", "fp32")
}
PAIRS_ONE, PAIRS_TWO = "pairs, one exchange a round", "pairs, two exchanges a round"
GROUPS: Final[Ways] = {
    BASE: ("pairwise", {}),
    BASE + FREE: ("pairwise", {"clip": math.inf}),
    "fp32" + FREE: ("pairwise", {"codec": "fp32", "clip": math.inf}),
    PAIRS_ONE: ("pairwise", {"early": 0.0, "exchanges": 1}),
    PAIRS_TWO: ("pairwise", {"early": 1.0, "early_exchanges": 2}),
    "two early, then one": ("pairwise", {"early_exchanges": 2, "exchanges": 1}),
    "groups of 4": ("pairwise-groups", {"size": 4}),
    "groups of 8": ("pairwise-groups", {"size": 8}),
    "groups of 4 early, then pairs": ("pairwise-groups", {"size": 4, "always": False}),
    "groups of 8 early, then pairs": ("pairwise-groups", {"size": 8, "always": False}),
    "groups of 8, fp32": ("pairwise-groups", {"size": 8, "codec": "fp32"}),
}
TIMED: Final = (BASE, BASE + FREE, PAIRS_ONE, PAIRS_TWO, "groups of 4", "groups of 8")
AT_ONCE, LATE = "groups", "groups on 100 Mbit/s"
ENOUGH: Final = 0.02
"""nats for which the product would be changed"""


def _arms(scale: Scale) -> list[Arm]:
    base = at_scale(replace(MLP, rounds=40), scale)
    found: list[Arm] = []
    for name, exchanges in EXCHANGES.items():
        ways = {**WRAPPED, **TWINS}
        found += arms(name, base, {label: (method, {**exchanges, **more}) for label, (method, more) in ways.items()})
    there = link(100.0, 40.0, ByteMlp().parameters, 1e8)
    found += arms(AT_ONCE, base, GROUPS)
    return found + arms(LATE, replace(base, link=there), {label: GROUPS[label] for label in TIMED})


def _read(results: Results) -> Findings:
    tables, checks = [], []
    for name, outcomes in results.groups.items():
        late = name == LATE
        tables.append(_table(name, outcomes, late))
        checks.append(_best(name, outcomes))
    shown = {name: results.groups[name] for name in (AT_ONCE, *EXCHANGES)}
    return Findings(tables, checks, [bytes_graph(shown)])


def _table(name: str, outcomes: Mapping[str, Outcome], late: bool) -> Table:
    ours, free = outcomes[BASE], outcomes[BASE + FREE]
    columns = (
        *("", *LOSSES, "against pairwise", "against it without clipping", "bytes a parameter", "% of blocks escalated"),
        *("consensus distance", *(("an exchange lasts, in rounds",) if late else ())),
    )
    rows = []
    for label, outcome in outcomes.items():
        escalated = 100.0 * _quotient(outcome, "escalated", "blocks")
        lasting = (formatted([_quotient(outcome, "landing", "exchanges")], 2),) if late else ()
        rows.append(
            (
                label,
                *loss_cells(outcome),
                formatted(outcome.loss - ours.loss),
                formatted(outcome.loss - free.loss),
                f"{outcome.bytes:.1f}",
                formatted([escalated], 1),
                f"{mean(outcome.last(lambda point: point.distance)):.2f}",
                *lasting,
            )
        )
    return Table(name, columns, rows)


def _quotient(outcome: Outcome, above: str, below: str) -> float:
    """The quotient of two counts; NaN if the second is 0."""
    whole = outcome.fact(below)
    return outcome.fact(above) / whole if whole else math.nan


def _best(name: str, outcomes: Mapping[str, Outcome]) -> Check:
    """Whether any variant of no more bytes beats pairwise by enough to change the product."""
    ours = outcomes[BASE]
    rivals = [label for label in outcomes if not outcomes[label].bytes > 1.02 * ours.bytes]
    other = outcomes[best(outcomes, rivals)]
    what = f"{name}: pairwise above the best that costs no more ({other.arm.label}), nats"
    replicas = ours.replica_loss - other.replica_loss
    return check(what, f"<= {ENOUGH}", ours.loss - other.loss, replicas=replicas)


SUITE = Suite(
    name="trials",
    question="What else was tried?",
    about="The model of B1, N = 16, H = 20, 40 rounds, from scratch. The changes to `pairwise` here are in the "
    "laboratory alone. Rotated: random signs and a Walsh-Hadamard transform of each block of 256 before the "
    "codec. Outliers: the values that each side expects to differ most travel in fp32. Momentum: averaged as "
    "the anchors are, by the same codec. Groups: a round's exchanges are one average of 4 or 8 peers. One of "
    "them gathers, averages and returns each chunk, without clipping, so pairs without clipping are shown "
    "too. Links take no time except in the last table: a model of 100 M parameters on 100 Mbit/s, 80 ms round "
    "trip, steps of 1 s. There no peer waits, and an exchange lands late.",
    arms=_arms,
    read=_read,
)
