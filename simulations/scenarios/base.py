"""Scenarios of whole peers: a question, a plan for each seed, and the figures that answer the question.

Such a scenario is a `Plan`, so every invariant of the simulator holds in it, and a run that breaks one can shrink. Its
marks are figures that a run must reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulations.scenarios.findings import Findings, Report
from simulations.scenarios.observed import ObservedCluster
from simulations.scenarios.shrink import Failure
from simulations.simulator.cluster import Plan
from simulations.simulator.network import Record

__all__ = ["Scenario", "percentile", "play"]


@dataclass(frozen=True)
class Scenario:
    """A question to a simulated network.

    Args:
        peers: the usual number of peers; 0 if the seed decides.
        plan: makes the plan of a seed and a number of peers.
        read: makes the findings of a finished run.
        least: the smallest number of peers.
    """

    name: str
    question: str
    peers: int
    plan: Callable[[int, int], Plan]
    read: Callable[[ObservedCluster], Findings]
    least: int = 2


def percentile(values: Sequence[float], share: float) -> float:
    """Quantile of `values`, rounded up to one of them; NaN without values."""
    return float(np.quantile(values, share, method="higher")) if values else float("nan")


def play(
    scenario: Scenario,
    seed: int,
    peers: int | None = None,
    *,
    plan: Plan | None = None,
    trace: Callable[[Record], None] | None = None,
) -> Report:
    """Play a seed, or `plan` with the seed's randomness. A broken invariant ends the run and is part of the report."""
    began = time.perf_counter()
    plan = plan or scenario.plan(seed, peers or scenario.peers)
    cluster = ObservedCluster(seed, plan, trace)
    failure: Failure | None = None
    try:
        cluster.run()
    except Exception as error:
        failure = Failure.of(error, cluster.network.now)
    return Report(
        scenario.name,
        scenario.question,
        seed,
        plan.peers,
        scenario.read(cluster) if failure is None else _unfinished(cluster),
        f"{failure.text}, at {failure.at:.3f} s" if failure else "",
        failure,
        plan,
        cluster.network.events,
        cluster.network.now,
        time.perf_counter() - began,
        cluster.network.log_hash,
    )


def _unfinished(cluster: ObservedCluster) -> Findings:
    """Findings of a run that an invariant ended."""
    books = cluster.books
    counts = (books.exchanges, books.mixed, books.rounds, sum(books.doubts.values()))
    return Findings(
        ("exchanges", "chunks mixed", "rounds", "in doubt"),
        [tuple(map(str, counts))],
        (),
        [cluster.members_panel(), cluster.distance_panel()],
    )
