"""The consensus-distance controller of algorithms section 7: on or off?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simulations.lab import Setting
from simulations.lab_problems import ByteMlp
from simulations.lab_runs import link
from simulations.suites.b1 import MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    arms,
    bytes_graph,
    check,
    curves_table,
    distance_graph,
    most,
    sized,
)

__all__ = ["SUITE"]

BASE: Final = replace(MLP, peers=8, rounds=40, evaluate_every=4, link=link(100.0, 40.0, ByteMlp().parameters, 1e8))
UNEQUAL: Final = replace(BASE, speeds=(1.0, 2.0, 4.0))
CASES: Final[dict[str, tuple[Setting, dict[str, Any], dict[str, Any]]]] = {
    "warm start": (replace(BASE, warmup=100), {}, {}),
    "from scratch": (BASE, {}, {}),
    "mu 0.9, one exchange": (BASE, {}, {"momentum": 0.9, "early": 0.0}),
    "hosts 1:2:4, one exchange": (UNEQUAL, {}, {"early": 0.0}),
    "hosts 1:2:4, one exchange, Dirichlet 0.005": (UNEQUAL, {"dirichlet": 0.005}, {"early": 0.0}),
}
"""the last two so that a second exchange does not cure it"""
OFF, ON, TWO = "off", "on", "off, two exchanges"
WORSE: Final = 0.01
"""nats by which it may be worse where it is not needed"""


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    for name, (setting, data, options) in CASES.items():
        ways: Ways = {
            OFF: ("pairwise-controlled", {**options, "acts": False}),
            ON: ("pairwise-controlled", {**options, "acts": True}),
            TWO: ("pairwise-controlled", {**options, "acts": False, "exchanges": 2}),
        }
        found += arms(name, sized(setting, scale), ways, data=data)
    return found


def _read(results: Results) -> Findings:
    checks, rows = [], []
    for name, outcomes in results.groups.items():
        better = outcomes[OFF].loss - outcomes[ON].loss
        checks.append(check(f"{name}: on, below off, nats", f">= -{WORSE}", better, better >= -WORSE))
        rows += [
            (name, label, f"{outcome.fact('ratio'):.2f}", f"{outcome.fact('level'):.1f}")
            for label, outcome in outcomes.items()
        ]
    gains = [outcomes[OFF].loss - outcomes[ON].loss for outcomes in results.groups.values()]
    checks.append(check("the most that it gains in any case, nats", "> 0.01", most(gains)))
    table = Table("What it saw and did", ("case", "controller", "R, second half", "level at the end"), rows)
    tables = [*(curves_table(name, outcomes) for name, outcomes in results.groups.items()), table]
    return Findings(tables, checks, [distance_graph(results.groups), bytes_graph(results.groups)])


SUITE = Suite(
    name="controller",
    question="Does the consensus-distance controller help?",
    about="The model of B1, N = 8, H = 20, 40 rounds, links of 100 Mbit/s and 80 ms there and back that carry as many "
    "bytes as a model of 100 million parameters would send. Off: it measures and changes nothing. Two exchanges: what "
    "its first level would be, if it were simply configured. Its second makes H shorter, its third halves mu.",
    arms=_arms,
    read=_read,
    tried="two exchanges in every round: here; other mu: [b9](b9.md); other H: [defaults](defaults.md)",
)
