"""What would close the gap between pairwise and DiLoCo, on B8's transformer with 16 and 32 peers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simulations.lab.core import Setting
from simulations.lab.suites.arms import Ways, arms, at_scale, with_short_start
from simulations.lab.suites.b8 import FEWER, MANY, TRANSFORMER, WARMUP
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Check, check, formatted, reported
from simulations.lab.suites.tables import LOSSES, best, loss_cells

__all__ = ["SUITE"]

SIZES: Final = (16, 32)
COLD, OWN = "cold", "its own warm start"
STARTS: Final[Mapping[str, dict[str, Any]]] = {COLD: {}, OWN: {"warmup_steps": WARMUP}}
SHIPPED: Final = "pairwise"
EXACT: Final[dict[str, Any]] = {"exchanges": 5, "early_exchanges": 5, "schedule": "base2"}
CHANGES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    SHIPPED: ("pairwise", {}),
    "alpha 0.7, mu 0.7": ("pairwise", {"lr": 0.7, "momentum": 0.7}),
    "mu 0.6": ("pairwise", {"momentum": 0.6}),
    "mu 0.8": ("pairwise", {"momentum": 0.8}),
    "alpha rises from 0.4 to 0.9": ("pairwise-rising", {"first": 0.4, "last": 0.9}),
    "4 bits, one exchange in late rounds": ("pairwise", {"bits": 4, "exchanges": 1}),
    "four exchanges in early rounds": ("pairwise", {"early_exchanges": 4}),
    "no clipping": ("pairwise", {"clip": math.inf}),
    "exact averages in all rounds": ("pairwise", EXACT),
    "groups of 8": ("pairwise-groups", {"size": 8}),
    "groups of 16": ("pairwise-groups", {"size": 16}),
}
"""made alone, if not said otherwise. Exact averages cost more than the mark allows"""
SCHEDULED: Final[Ways] = {
    "warm rounds along the hypercube": ("pairwise", {"warmup_scheduled": True, "warmup_exchanges": 5}),
}
"""from its own start alone"""
RIVALS: Final[Ways] = {
    f"DiLoCo fp32, mu {mu}": ("diloco", {"alpha": 1.0, "mu": mu, "plain_first": True}) for mu in (0.6, 0.8)
}
MUON: Final[Ways] = {SHIPPED: CHANGES[SHIPPED], **RIVALS, "DDP": ("ddp", {})}
MUON_SIZES: Final = (8, 16, 32)
NEAR: Final = 0.03
"""nats above DiLoCo: the mark"""
LEAN: Final = 1.2
"""bytes a parameter and round: the mark"""


def _group(peers: int, start: str) -> str:
    return f"N = {peers}, {start}"


def _setting(peers: int, scale: Scale) -> Setting:
    setting = at_scale(replace(TRANSFORMER, peers=peers), scale)
    return replace(setting, rounds=min(setting.rounds, FEWER)) if peers >= MANY and scale != "full" else setting


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []

    def add(group: str, setting: Setting, ways: Ways, start: str, seeds: int | None = None) -> None:
        started = {
            label: (method, with_short_start({**options, **({} if method == "ddp" else STARTS[start])}, scale))
            for label, (method, options) in ways.items()
            if options.get("size", 0) <= setting.peers
        }
        found.extend(arms(group, setting, started, problem="byte-transformer", seeds=seeds))

    for peers in SIZES:
        seeds = None if peers < MANY else 1
        for start in STARTS:
            ways = {**CHANGES, **(SCHEDULED if start == OWN else {}), **RIVALS}
            add(_group(peers, start), _setting(peers, scale), ways, start, seeds)
    for peers in MUON_SIZES:
        setting = replace(_setting(peers, scale), inner="muon")
        add(f"Muon, {_group(peers, OWN)}", setting, MUON, OWN, None if peers < MANY else 1)
    return found


def _read(results: Results) -> Findings:
    checks: list[Check] = []
    figures = []
    tables = []
    for group, outcomes in results.groups.items():
        rival = best(outcomes, RIVALS)
        ours = outcomes[SHIPPED]
        above, replicas = ours.loss - outcomes[rival].loss, ours.replica_loss - outcomes[rival].replica_loss
        what = f"{group}: pairwise above the best DiLoCo with the same start ({rival}), nats"
        if group.startswith("Muon"):
            figures.append(reported(what, above, replicas=replicas))
        else:
            checks.append(check(what, f"<= {NEAR}", above, replicas=replicas))
            checks.append(check(f"{group}: bytes a parameter and round", f"<= {LEAN}", _bytes_a_round(ours)))
        tables.append(_table(group, outcomes))
    return Findings(tables, checks, (), (), figures)


def _table(group: str, outcomes: Mapping[str, Outcome]) -> Table:
    ours, rival = outcomes[SHIPPED], outcomes[best(outcomes, RIVALS)]
    rows = [
        (
            label,
            *loss_cells(outcome),
            formatted(ours.loss - outcome.loss),
            formatted(outcome.loss - rival.loss),
            f"{_bytes_a_round(outcome):.2f}",
            formatted(outcome.last(lambda point: point.distance), 2),
        )
        for label, outcome in outcomes.items()
    ]
    columns = ("method", *LOSSES, "below pairwise", "above DiLoCo", "bytes a round", "distance")
    return Table(group, columns, rows)


def _bytes_a_round(outcome: Outcome) -> float:
    """Bytes a parameter in the rounds after the start."""
    spent = outcome.each(lambda curve: curve.last.bytes - curve.points[0].bytes)
    return sum(spent) / len(spent) / outcome.setting.rounds if spent else float("nan")


SUITE = Suite(
    name="gap",
    question="What would close the gap between pairwise and DiLoCo?",
    about=f"The transformer of B8, H = 30, links that take no time, N = 16 (32 rounds) and {MANY} ({FEWER} rounds, one "
    f"seed), cold and from a start of their own of {WARMUP} steps in short rounds. DiLoCo has the same starts. Each "
    "change is made alone. Muon steps the matrices of all "
    f"methods in the last groups. Bytes are those after the start. The mark is {NEAR} nats for at most {LEAN} bytes a "
    "parameter and round.",
    arms=_arms,
    read=_read,
)
