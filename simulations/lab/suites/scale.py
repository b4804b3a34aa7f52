"""From 8 to 256 peers, and by formulas to 10,000."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simulations.lab.core import Curve, Setting
from simulations.lab.runs.runs import Run
from simulations.lab.suites.arms import Ways, arms
from simulations.lab.suites.base import FORMULA, Arm, Findings, Graph, Line, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import check, formatted, least, mean, most
from simulations.lab.suites.graphs import end_line
from simulations.lab.suites.model import MLP
from simulations.lab.suites.tables import curves_table
from simulations.lab.theory.consensus import matching

__all__ = ["SUITE"]

SIZES: Final = (8, 16, 32, 64, 128, 256)
FAR: Final = 10_000
LEFT: Final = 0.01
"""share of the first distance at which replicas count as agreed"""
LEARNING: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
}
MEETING: Final[dict[str, dict[str, Any]]] = {
    "random matching": {"schedule": ""},
    "hypercube": {"schedule": "hypercube", "early": 1.0, "early_exchanges": 1},
}
AGREEING: Final[dict[str, Any]] = {
    "lr": 1.0,
    "momentum": 0.0,
    "codec": "fp32",
    "clip": math.inf,
    "early": 0.0,
    "exchanges": 1,
}


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    base = replace(MLP, every=10, rounds=30, evaluate_every=5)
    if scale == "quick":
        base = replace(base, every=3, rounds=3)
    for peers in SIZES if scale != "quick" else (4, 8):
        found += arms(f"N = {peers}", replace(base, peers=peers), LEARNING)
        still = Setting(peers=peers, every=1, rounds=24, inner="sgd", lr=0.0)
        for label, options in MEETING.items():
            run = Run(setting=still, problem="consensus", data={"peers": peers}, options={**AGREEING, **options})
            found.append(Arm(f"agreement, N = {peers}", label, run))
    return found


def rounds_of_cycle(curve: Curve) -> float:
    """Whole rounds until agreement by a schedule, counted from the begin of a cycle.

    A schedule is exact at the end of a cycle. The first round of a run makes the second step of its first cycle.
    """
    begin = (curve.setting.peers - 1).bit_length() - 1
    first, *points = (point for point in curve.points if point.round >= begin)
    agreed = (point for point in points if point.distance <= LEFT * first.distance)
    return next((float(point.round - first.round) for point in agreed), math.inf)


def rounds_to_agree(curve: Curve) -> float:
    """Rounds until the distance is `LEFT` of the first, interpolated in its logarithm."""
    first, before = curve.points[0].distance, curve.points[0]
    for point in curve.points[1:]:
        if point.distance <= LEFT * first:
            fall = math.log(before.distance / max(point.distance, 1e-3 * LEFT * first))
            return before.round + math.log(before.distance / (LEFT * first)) / fall
        before = point
    return math.inf


def _sizes(results: Results, prefix: str) -> dict[int, dict[str, Outcome]]:
    return {
        int(group.rpartition(" ")[2]): outcomes
        for group, outcomes in results.groups.items()
        if group.startswith(prefix)
    }


def _formula(label: str, peers: float, constant: float) -> float:
    """Bytes per parameter and round, by formula."""
    if label.startswith("DiLoCo"):
        return 8.0 * (1.0 - 1.0 / peers)
    return constant


def _read(results: Results) -> Findings:
    learning, agreeing = _sizes(results, "N = "), _sizes(results, "agreement")
    sizes = sorted(learning)
    bytes_table, cost = _cost(learning)
    lean = [learning[peers]["pairwise, one exchange a round"].bytes for peers in sizes]
    flat = most(lean) / least(lean) - 1.0
    expected = math.log(LEFT**2) / math.log(matching(sizes[-1]))
    measured = mean(agreeing[sizes[-1]]["random matching"].each(rounds_to_agree))
    off = abs(measured / expected - 1.0)
    checks = [
        check("pairwise's bytes at one exchange a round at any N, the most above the least, share", "<= 0.05", flat),
        check(f"rounds to agreement at N = {sizes[-1]}, share off the formula's", "<= 0.15", off),
    ]
    losses = {
        label: end_line({float(peers): learning[peers][label] for peers in sizes}, lambda point: point.loss)
        for label in LEARNING
    }
    graphs = [
        Graph(
            "cost",
            "Cost against the number of peers (dashed: formula)",
            "peers",
            "bytes a parameter and round",
            {"": cost},
            log_x=True,
            log_y=True,
        ),
        Graph("loss", "Loss against the number of peers", "peers", "held-out loss, nats", {"": losses}, log_x=True),
    ]
    curves = (curves_table(f"N = {peers}", learning[peers]) for peers in sizes)
    return Findings([bytes_table, _agreement(agreeing, sizes), *curves], checks, graphs)


def _cost(learning: Mapping[int, Mapping[str, Outcome]]) -> tuple[Table, dict[str, Line]]:
    """Bytes per parameter and round, as a table and as lines: measured, and by the formulas beyond that."""
    sizes = sorted(learning)
    rounds = _rounds(learning[sizes[0]]["pairwise"])
    rows, cost = [], {}
    for label in LEARNING:
        a_round = {float(peers): learning[peers][label].bytes / rounds for peers in sizes}
        cost[label] = Line(list(a_round), list(a_round.values()))
        beyond = [float(sizes[-1]), 1000.0, float(FAR)]
        told_by = [_formula(label, peers, a_round[beyond[0]]) for peers in beyond]
        cost[label + FORMULA] = Line(beyond, told_by, dashed=True)
        cells = (_told_bytes(learning[peers][label], rounds) for peers in sizes)
        rows.append((label, *cells, f"*{told_by[-1]:.2f}*"))
    table = Table(
        "Bytes a parameter and round",
        ("method", *(f"N = {peers}" for peers in sizes), f"*{FAR:,}*"),
        rows,
        f"*Figures in italics are by formula: pairwise as measured at N = {sizes[-1]}, DiLoCo's all-reduce "
        "8 (1 - 1/N).*",
    )
    return table, cost


def _agreement(agreeing: Mapping[int, Mapping[str, Outcome]], sizes: Sequence[int]) -> Table:
    """Rounds until replicas agree, measured and by the formulas."""
    rows = []
    for label in MEETING:
        by_schedule = label != "random matching"
        of = rounds_of_cycle if by_schedule else rounds_to_agree
        values = [formatted(agreeing[peers][label].each(of), 1) for peers in sizes]
        far = math.ceil(math.log2(FAR)) if by_schedule else math.log(LEFT**2) / math.log(matching(FAR))
        rows.append((label, *values, f"*{far:.1f}*"))
    return Table(
        f"Rounds until replicas are at {LEFT:.0%} of their first distance",
        ("one exchange a round", *(f"N = {peers}" for peers in sizes), f"*{FAR:,}*"),
        rows,
        f"*{FAR:,} by the formulas of algorithms section 7; of a hypercube that of the next power of two.* They are of "
        "the mean square: of few peers most runs are faster, for a few lucky meetings make them all agree. Those "
        "of the hypercube are whole, from the begin of a cycle; begun anywhere else it takes 2 log2 N - 1 at the most.",
    )


def _rounds(outcome: Outcome) -> int:
    task = outcome.arm.task
    assert isinstance(task, Run)
    return task.setting.rounds


def _told_bytes(outcome: Outcome, rounds: int) -> str:
    return formatted([value / rounds for value in outcome.last(lambda point: point.bytes)], 2)


SUITE = Suite(
    name="scale",
    question="What does it cost to be many?",
    about="The model of B1, H = 10, 30 rounds, N = 8 to 256; and replicas that learn nothing and only agree.",
    arms=_arms,
    read=_read,
    tried=(
        ("bytes", "three exchanges in each early round: here and in [b2](b2.md)"),
        ("rounds to agreement", "the hypercube, which is exact after log2 N: here; other N and gamma: [b7](b7.md)"),
    ),
)
