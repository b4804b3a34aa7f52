"""Two unequal hosts: what does each way of using them reach in the same time, and how should hosts be weighted?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulations.lab.core import Setting
from simulations.lab.problems import ByteMlp
from simulations.lab.runs.runs import Run
from simulations.lab.suites.arms import explicit_options
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import formatted, reported
from simulations.lab.suites.model import MLP
from simulations.lab.suites.tables import best, loss_cells

__all__ = ["SUITE"]

FACTORS: Final = (0.5, 1.0, 2.0)
"""multiples of the model's learning rate; each way has the best one"""
MORE: Final = 4
"""how much faster the fast host is, or how much larger its batch"""
OURS: Final = "pairwise"
SAME: Final = "pairwise, the small host accumulates to the same batch"
WEIGHTED: Final = "pairwise, hosts weighted by batch"
DDP: Final = "DDP, the small batch and the slow pace on both"
DDP_OWN: Final = "DDP, own batches weighted by samples, the slow pace"
ALONE: Final = "the larger host alone"


@dataclass(frozen=True)
class _Hosts:
    """Two hosts. The first is the smaller one."""

    larger: int
    """batch of the second, as a multiple of that of the first"""
    faster: int
    """speed of the second, in the same way"""


HOSTS: Final = {
    "two equal hosts": _Hosts(1, 1),
    "batch 1:4": _Hosts(MORE, 1),
    "speed 1:4": _Hosts(1, MORE),
    "batch and speed 1:4": _Hosts(MORE, MORE),
}
STEPS: Final = 1200
"""of the slow host"""
BATCH: Final = ByteMlp().batch


def _rounds(faster: int, steps: int, every: int) -> tuple[int, int]:
    """H of the slow host and the number of rounds. The two hosts make `every` steps a round on average."""
    own = max(1, round(2 * every / (1 + faster)))
    return own, steps // own


def _ways(hosts: _Hosts, scale: Scale) -> Iterator[tuple[str, Run]]:
    """Every way to use these hosts for the time in which the slow one makes its steps, by label."""
    steps, every = (STEPS, MLP.every) if scale != "quick" else (40, 5)
    sizes = [BATCH, BATCH * hosts.larger]

    def run(method: str, options: Mapping[str, Any], sizes: list[int], **more: Any) -> Run:
        data = {"of": "byte-mlp", "sizes": sizes}
        setting = replace(MLP, **{"peers": 2, "every": every, "rounds": steps // every} | more)
        setting = replace(setting, evaluate_every=setting.rounds)
        return Run(
            setting=setting, problem="unequal", data=data, method=method, options=explicit_options(method, options)
        )

    own, rounds = _rounds(hosts.faster, steps, every)
    unequal = {"every": own, "rounds": rounds, "speeds": (1.0, float(hosts.faster))}
    yield OURS, run("pairwise", {}, sizes, **unequal)
    if hosts.larger > 1:
        pace = hosts.larger * hosts.faster
        own, rounds = _rounds(pace, steps // hosts.larger, every)
        accumulating = {"every": own, "rounds": rounds, "speeds": (1.0, float(pace))}
        yield SAME, run("pairwise", {}, sizes[1:], **accumulating, step_seconds=float(hosts.larger))
        yield WEIGHTED, run("pairwise-weighted", {"weights": sizes}, sizes, **unequal)
        # The mean gradient of two equal batches is that of unequal ones weighted by samples.
        yield DDP_OWN, run("ddp", {}, [sum(sizes) // 2])
    yield DDP, run("ddp", {}, sizes[:1])
    faster = {"every": every * hosts.faster, "step_seconds": 1.0 / hosts.faster}
    yield ALONE, run("local-only", {}, sizes[1:], peers=1, **faster)


def _arms(scale: Scale) -> list[Arm]:
    return [
        Arm(what, f"{label}, lr {factor:g}", replace(run, setting=_rated(run.setting, factor)))
        for what, hosts in HOSTS.items()
        for label, run in _ways(hosts, scale)
        for factor in FACTORS
    ]


def _rated(setting: Setting, factor: float) -> Setting:
    return replace(setting, lr=setting.lr * factor)


def _read(results: Results) -> Findings:
    tables, figures = [], []
    for group, outcomes in results.groups.items():
        found = _at_best_rates(outcomes)
        rows = [
            (label, *loss_cells(outcome), formatted(outcome.last(lambda point: point.steps), 0), f"{factor:g}")
            for label, (factor, outcome) in found.items()
        ]
        columns = ("", "loss", "single replicas", "finished model", "steps of a host, mean", "rate, times the model's")
        tables.append(Table(group, columns, rows))
        ours = found[OURS][1].finished_loss
        figures += [
            reported(f"{group}: pairwise below {label}, nats", outcome.finished_loss - ours)
            for label, (_, outcome) in found.items()
            if label != OURS
        ]
    return Findings(tables, reported=figures)


def _at_best_rates(outcomes: Mapping[str, Outcome]) -> dict[str, tuple[float, Outcome]]:
    """Each way at its best learning rate, and that rate's factor."""
    found = {}
    for label in dict.fromkeys(label.rpartition(", lr ")[0] for label in outcomes):
        rated = {factor: outcomes[f"{label}, lr {factor:g}"] for factor in FACTORS}
        chosen = best({f"{factor:g}": outcome for factor, outcome in rated.items()}, of=lambda one: one.finished_loss)
        found[label] = float(chosen), rated[float(chosen)]
    return found


SUITE = Suite(
    name="two",
    question="What do two unequal hosts reach together, and how should they be weighted?",
    about="The byte-level MLP on two hosts, whose links take no time. The second host has a batch four times as large, "
    f"four times the speed, or both. All ways have the same time: that in which the slow host makes {STEPS} steps. "
    "Each way has the best of three learning rates. Under DDP both hosts keep the pace of the slow one. A weighted "
    "host multiplies alpha of its own outer step by its share of the samples.",
    arms=_arms,
    read=_read,
)
