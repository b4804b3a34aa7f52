"""B9: the clock of a billion parameters on 100 Mbit/s."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulations.lab.core import Curve
from simulations.lab.problems import ByteMlp, ByteTransformer
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import Run, link
from simulations.lab.suites.arms import arms, with_short_start
from simulations.lab.suites.b8 import TRANSFORMER
from simulations.lab.suites.base import Arm, Findings, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, check, formatted, reported
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.model import MLP, RATES, START, WARMUP, Clocked, diloco
from simulations.lab.suites.tables import LOSSES, best, loss_cells

__all__ = ["SUITE"]

PARAMETERS: Final = 1e9
SECONDS: Final = 1200.0
TRANSFORMING: Final = "transformer"
LONG: Final = "MLP, five times as long"
LONGER: Final = 5.0
OURS: Final = f"pairwise, {START}"
STARTED: Final = {"warmup_steps": WARMUP}
MUS: Final = (0.0, 0.4, 0.6, 0.8)
BASES: Final[Clocked] = {
    "pairwise": ("pairwise", {}, 50),
    OURS: ("pairwise", STARTED, 50),
    "DiLoCo 4-bit": ("diloco-4bit", {}, 50),
    f"DiLoCo 4-bit, overlapped, H 80, {START}": ("diloco-4bit-overlapped", STARTED, 80),
}
RIVALS: Final = tuple(label for label in BASES if label.startswith("DiLoCo"))


def _at(label: str, mu: float) -> str:
    return f"{label}, mu {mu:g}"


WAYS: Final[Clocked] = {
    **{label: way for label, way in BASES.items() if label not in RIVALS},
    **{
        _at(label, mu): (method, {**options, "momentum" if method == "pairwise" else "mu": mu}, every)
        for label, (method, options, every) in BASES.items()
        for mu in MUS
        if label != OURS
    },
}


def _arms(scale: Scale) -> list[Arm]:
    return [arm for model in (TRANSFORMING, LONG) for arm in _late(model, scale)]


def _late(model: str, scale: Scale) -> list[Arm]:
    transforms = model == TRANSFORMING
    parameters = ByteTransformer().parameters if transforms else ByteMlp().parameters
    base = replace(TRANSFORMER, rounds=1) if transforms else replace(MLP, peers=TRANSFORMER.peers)
    seconds = (SECONDS if scale != "quick" else 200.0) * (1.0 if transforms else LONGER)
    fewer = 10 if scale == "quick" else 1
    base = replace(base, step_seconds=float(fewer), link=link(100.0, 40.0, parameters, PARAMETERS), evaluate_every=1)
    problem = "byte-transformer" if transforms else "byte-mlp"
    found: list[Arm] = []
    for label, (method, given, every) in WAYS.items():
        options = with_short_start(given, scale)
        run = Run(setting=replace(base, every=every // fewer), problem=problem, method=method, options=options)
        setting = setting_in_time(seconds, run, parameters)
        setting = replace(setting, evaluate_every=max(1, setting.rounds // 12))
        more = diloco(setting.rounds, setting.peers) | options if method.startswith("diloco") else options
        found += arms(model, setting, {label: (method, more)}, problem=problem, rates={} if transforms else RATES)
    return found


def utilisation(curve: Curve) -> float:
    """Share of its time in which a peer computes."""
    return curve.last.steps * curve.setting.step_seconds / curve.last.seconds


def _read(results: Results) -> Findings:
    checks, figures, tables = [], [], []
    for model, outcomes in results.groups.items():
        computes = Figure(outcomes["pairwise"].each(utilisation))
        checks.append(check(f"{model}: utilisation of pairwise, %", ">= 97", 100 * computes, digits=1))
        for rival in RIVALS:
            other = best(outcomes, [_at(rival, mu) for mu in MUS])
            ours = "pairwise" if START not in rival else OURS
            figures.append(reported(f"{model}: {ours} below {other}", outcomes[other].loss - outcomes[ours].loss))
        rows = [
            (
                label,
                formatted([100 * value for value in outcome.each(utilisation)], 1),
                *loss_cells(outcome),
                f"{formatted(outcome.last(lambda point: float(point.round)), 0)} of {outcome.setting.every}",
            )
            for label, outcome in outcomes.items()
        ]
        tables.append(Table(model, ("method", "utilisation, %", *LOSSES, "rounds of H steps"), rows))
    graphs = [seconds_graph(results.groups, "Loss against simulated wall clock, 1e9 parameters on 100 Mbit/s")]
    return Findings(tables, checks, graphs, NOTES, figures)


NOTES: Final = (
    "That pairwise computes all the time is true by construction: it waits for nothing, so its clock has no waiting in "
    "it. What that is worth is in the losses, which know when each exchange landed.",
    "The loss is that of the mean of the replicas. No peer holds it, and no clock counts its averaging.",
)


SUITE = Suite(
    name="b9",
    question="A billion parameters on 100 Mbit/s: who waits, and what does landing late cost?",
    about="The transformer of b8 for 1,200 simulated seconds and the byte-level MLP for 6,000, N = 8, steps of 1 s. "
    "Links of 100 Mbit/s and 40 ms carry as many bytes as a billion parameters would send. Each method plays whole "
    "rounds that fill the time to 2 %, with the H nearest to 50, or to the one in its name. Overlapped DiLoCo does "
    "not wait either, if its all-reduce fits into a round, some 70 s at 4 bits. A warm start is a method's own: "
    f"{WARMUP} steps in rounds as long as an exchange, with alpha 1 and mu 0. Pairwise without mu in its name has the "
    "daemon's. The MLP has each method's own learning rate, the transformer one for all.",
    arms=_arms,
    read=_read,
)
