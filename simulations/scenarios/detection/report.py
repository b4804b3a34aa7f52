"""Detection as a report: one seed, or several taken together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from simulations.check import Check
from simulations.scenarios.base import Findings, Panel, Report
from simulations.scenarios.detection import experiment as detection

__all__ = ["detection_report", "pooled_detection_report"]


def detection_report(seed: int, peers: int) -> Report:
    """Of one seed, whose median has a wider mark than that of many."""
    both = {lifeguard: [detection.run(seed, peers, lifeguard)] for lifeguard in (True, False)}
    return pooled_detection_report(both)


def pooled_detection_report(outcomes: Mapping[bool, Sequence[detection.Detection]]) -> Report:
    """Of any number of seeds taken together, which both protocols have played; True is with Lifeguard."""
    named = {"Lifeguard": outcomes[True], "plain SWIM": outcomes[False]}
    pools = {name: detection.Pool.of(of) for name, of in named.items()}
    ours, plain = pools.values()
    seeds = [one.seed for one in outcomes[True]]
    rows = [
        (
            name,
            str(pool.false_failures),
            str(pool.wronged),
            str(pool.starved_failures),
            f"{pool.median:.1f} s",
            f"{pool.late:.1f} s",
            f"{median(pool.first):.1f} s",
        )
        for name, pool in pools.items()
    ]
    bound = detection.median_mark(len(seeds))
    whose = "" if bound == detection.MEDIAN else f", few seeds (of many: {detection.MEDIAN:.0f} s)"
    checks = [
        Check(
            "false failures, of those of plain SWIM (T6)",
            f"<= 1/{detection.FEWER}",
            f"{ours.false_failures} of {plain.false_failures}",
            detection.FEWER * ours.false_failures <= plain.false_failures,
        ),
        Check(
            f"a death is known to a member, median{whose}", f"<= {bound:.0f} s", f"{ours.median:.1f} s",
            ours.median <= bound,
        ),
        Check(
            "a death is known to a member, 99 %", f"<= {detection.LATE:.0f} s", f"{ours.late:.1f} s",
            ours.late <= detection.LATE,
        ),
    ]  # fmt: skip
    wrongs = {name: ((0.0, 1.0), (float(pool.false_failures), float(pool.wronged))) for name, pool in pools.items()}
    times = "seconds since the death"
    return Report(
        "detection",
        "Are the dead found, and only they?",
        seeds[0],
        outcomes[True][0].peers,
        Findings(
            ("", "false failures", "wronged", "starved", "known, median", "99 %", "first"),
            rows,
            checks,
            [
                Panel(
                    "the living held for dead",
                    wrongs,
                    bars=("times a healthy member was failed by another", "healthy members to whom that happened"),
                    across="",
                ),
                Panel(
                    "share of members who know of a death",
                    {name: _shares(pool.times) for name, pool in pools.items()},
                    mark=0.99,
                    steps=True,
                    across=times,
                ),
                Panel(
                    "share of deaths that somebody knows of",
                    {name: _shares(pool.first) for name, pool in pools.items()},
                    steps=True,
                    across=times,
                ),
            ],
        ),
        "",
        None,
        None,
        ours.events + plain.events,
        len(seeds) * 2 * (detection.FORMING + 180.0 + detection.WATCHED),
        ours.wall + plain.wall,
        seeds=len(seeds),
    )


def _shares(times: Sequence[float]) -> tuple[list[float], list[float]]:
    """The distribution of `times`; those that never came make it end below 1."""
    known = sorted(time for time in times if time < math.inf)
    return [0.0, *known], [place / len(times) for place in range(len(known) + 1)]
