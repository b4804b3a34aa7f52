"""B2: from 8 to 64 peers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulations.suites.b1 import EPIDEMIC, MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Graph,
    Outcome,
    Results,
    Scale,
    Suite,
    Ways,
    against,
    arms,
    check,
    curves_table,
    distance_graph,
    mean,
    reported,
    sized,
)

__all__ = ["SUITE"]

SIZES: Final = (8, 16, 32, 64)
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "epidemic k=64": ("epidemic", {**EPIDEMIC, "compressor": "topk64"}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6}),
}


def _group(peers: int) -> str:
    return f"N = {peers}"


def _arms(scale: Scale) -> list[Arm]:
    base = sized(replace(MLP, rounds=60 if scale == "full" else 40), scale)
    sizes = SIZES if scale != "quick" else (4, 8)
    return [arm for peers in sizes for arm in arms(_group(peers), replace(base, peers=peers), WAYS)]


def _read(results: Results) -> Findings:
    by_size = {int(group.removeprefix("N = ")): outcomes for group, outcomes in results.groups.items()}
    sizes = sorted(by_size)
    bytes_ = [by_size[peers]["pairwise"].bytes for peers in sizes]
    gaps = {peers: outcomes["pairwise"].loss - _best_diloco(outcomes) for peers, outcomes in by_size.items()}
    growth = gaps[sizes[-1]] - gaps[sizes[0]]
    flat = max(bytes_) / min(bytes_) - 1.0
    crossing = _crossing(
        {peers: by_size[peers]["epidemic k=128"].bytes / by_size[peers]["pairwise"].bytes for peers in sizes}
    )
    checks = [
        check("pairwise's bytes, most against least", "<= 0.05", flat, flat <= 0.05),
        check(f"gap to DiLoCo, growth from N = {sizes[0]} to {sizes[-1]}, nats", "< 0.03", growth, growth < 0.03),
    ]
    figures = [
        reported("N at which epidemic k=128 costs as many bytes as pairwise, by N - 1 messages", crossing, "", 1)
    ]
    figures += [
        reported(
            f"N = {peers}: pairwise below epidemic k=128, nats",
            outcomes["epidemic k=128"].loss - outcomes["pairwise"].loss,
        )
        for peers, outcomes in sorted(by_size.items())
    ]
    lines = {
        label: against({float(peers): by_size[peers][label] for peers in sizes}, lambda point: point.loss)
        for label in WAYS
    }
    costs = {
        label: against({float(peers): by_size[peers][label] for peers in sizes}, lambda point: point.bytes)
        for label in WAYS
    }
    peers_graph = Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", {"": lines}, True)
    cost_graph = Graph(
        "cost", "Bytes against the number of peers", "peers", "bytes a parameter", {"": costs}, True, True
    )
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, checks, [peers_graph, cost_graph, distance_graph(results.groups)], (), figures)


def _best_diloco(outcomes: Mapping[str, Outcome]) -> float:
    """Its loss with the outer momentum that is the better one for so many peers."""
    return min(outcome.loss for label, outcome in outcomes.items() if label.startswith("DiLoCo"))


def _crossing(ratios: Mapping[int, float]) -> float:
    """Where bytes grow with N - 1 on one side and not on the other: N at which the ratio is 1; NaN without a ratio."""
    found = [1.0 + (peers - 1) / ratio for peers, ratio in ratios.items() if ratio > 0.0]
    return mean(found) if found else math.nan


SUITE = Suite(
    name="b2",
    question="What do more peers change?",
    about="The model of B1, H = 20, 40 rounds (60 with --full, as designed), N = 8 to 64.",
    arms=_arms,
    read=_read,
)
