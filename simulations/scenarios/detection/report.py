"""Detection as a report: one seed, or several seeds taken together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from simulations.check import Check
from simulations.scenarios.detection import experiment
from simulations.scenarios.detection.experiment import Detection, Pool
from simulations.scenarios.findings import Findings, Panel, Report

__all__ = ["detection_report", "pooled_detection_report"]


def detection_report(seed: int, peers: int) -> Report:
    """Play one seed with both protocols. The mark of its median is wider than that of many seeds."""
    both = {lifeguard: [experiment.run(seed, peers, lifeguard)] for lifeguard in (True, False)}
    return pooled_detection_report(both)


def pooled_detection_report(outcomes: Mapping[bool, Sequence[Detection]]) -> Report:
    """Report of several seeds that both protocols have played.

    Args:
        outcomes: the runs with Lifeguard (True) and without (False).
    """
    pools = {name: Pool.of(outcomes[which]) for name, which in (("Lifeguard", True), ("plain SWIM", False))}
    ours, plain = pools.values()
    seeds = [one.seed for one in outcomes[True]]
    return Report(
        "detection",
        "Are dead members found, and only dead ones?",
        seeds[0],
        outcomes[True][0].peers,
        Findings(
            ("", "false failures", "wronged", "starved", "known, median", "99 %", "first"),
            [_row(name, pool) for name, pool in pools.items()],
            _checks(ours, plain, len(seeds)),
            _panels(pools),
        ),
        "",
        None,
        None,
        ours.events + plain.events,
        len(seeds) * 2 * (experiment.FORMING + 180.0 + experiment.WATCHED),
        ours.wall + plain.wall,
        seeds=len(seeds),
    )


def _row(name: str, pool: Pool) -> tuple[str, ...]:
    return (
        name,
        str(pool.false_failures),
        str(pool.wronged),
        str(pool.starved_failures),
        f"{pool.median:.1f} s",
        f"{pool.late:.1f} s",
        f"{median(pool.first):.1f} s",
    )


def _checks(ours: Pool, plain: Pool, seeds: int) -> list[Check]:
    fewer, late, bound = experiment.FEWER, experiment.LATE, experiment.median_mark(seeds)
    note = "" if bound == experiment.MEDIAN else f", few seeds (of many: {experiment.MEDIAN:.0f} s)"
    return [
        Check(
            "false failures, of those of plain SWIM (T6)",
            f"<= 1/{fewer}",
            f"{ours.false_failures} of {plain.false_failures}",
            fewer * ours.false_failures <= plain.false_failures,
        ),
        Check(
            f"a death is known to a member, median{note}",
            f"<= {bound:.0f} s",
            f"{ours.median:.1f} s",
            ours.median <= bound,
        ),
        Check("a death is known to a member, 99 %", f"<= {late:.0f} s", f"{ours.late:.1f} s", ours.late <= late),
    ]


def _panels(pools: Mapping[str, Pool]) -> list[Panel]:
    wrongs = {name: ((0.0, 1.0), (float(pool.false_failures), float(pool.wronged))) for name, pool in pools.items()}
    times = "seconds since the death"
    return [
        Panel(
            "live members believed failed",
            wrongs,
            bars=("times a healthy member was failed by another", "healthy members to which that happened"),
            across="",
        ),
        Panel(
            "share of members that know of a death",
            {name: _distribution(pool.times) for name, pool in pools.items()},
            mark=0.99,
            steps=True,
            across=times,
        ),
        Panel(
            "share of deaths that at least one member knows of",
            {name: _distribution(pool.first) for name, pool in pools.items()},
            steps=True,
            across=times,
        ),
    ]


def _distribution(times: Sequence[float]) -> tuple[list[float], list[float]]:
    """Cumulative distribution of `times`. Infinite times make it end below 1."""
    known = sorted(time for time in times if time < math.inf)
    return [0.0, *known], [place / len(times) for place in range(len(known) + 1)]
