"""B2: from 8 to 64 peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Graph, Outcome, Results, Scale, Suite
from simulations.lab.suites.figures import Figure, check, least, most, reported
from simulations.lab.suites.graphs import distance_graph, end_line
from simulations.lab.suites.model import MLP
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import best, curves_table

__all__ = ["SUITE"]

SIZES: Final = (8, 12, 16, 32, 64)
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}),
}
OTHERWISE: Final = ", otherwise"
WHOLE_CYCLES: Final = "pairwise, log2 N early exchanges"
ALPHA: Final = "pairwise, alpha 1"
"""as DiLoCo has"""
BOTH: Final = "pairwise, log2 N early exchanges, alpha 1"
MORE: Final = "pairwise, mu 0.8"
"""as DiLoCo has"""


def _group(peers: int) -> str:
    return f"N = {peers}"


def _arms(scale: Scale) -> list[Arm]:
    base = at_scale(replace(MLP, rounds=60 if scale == "full" else 40), scale)
    sizes = SIZES if scale != "quick" else (4, 8)
    found = [arm for peers in sizes for arm in arms(_group(peers), replace(base, peers=peers), WAYS, rates=RATES)]
    for peers in (sizes[0], sizes[-1]):
        cycle: dict[str, Any] = {"early_exchanges": peers.bit_length() - 1}
        ways: dict[str, dict[str, Any]] = {WHOLE_CYCLES: cycle, ALPHA: {"lr": 1.0}, BOTH: {**cycle, "lr": 1.0}}
        ways[MORE] = {"momentum": 0.8}
        setting = replace(base, peers=peers)
        found += arms(f"{_group(peers)}{OTHERWISE}", setting, {label: ("pairwise", way) for label, way in ways.items()})
    return found


def _read(results: Results) -> Findings:
    groups = {group: outcomes for group, outcomes in results.groups.items() if not group.endswith(OTHERWISE)}
    by_size = {int(group.removeprefix("N = ")): outcomes for group, outcomes in groups.items()}
    sizes = sorted(by_size)
    bytes_ = [by_size[peers]["pairwise"].bytes for peers in sizes]
    few, many = by_size[sizes[0]], by_size[sizes[-1]]
    growth, replicas = _growth(many, many["pairwise"], few, few["pairwise"])
    flat = most(bytes_) / least(bytes_) - 1.0
    checks = [
        check("pairwise's bytes at any N, the most above the least, share", "<= 0.05", flat),
        check(f"gap to DiLoCo, growth from N = {sizes[0]} to {sizes[-1]}, nats", "< 0.03", growth, replicas=replicas),
    ]
    figures = []
    for label in (WHOLE_CYCLES, ALPHA, BOTH, MORE):
        otherwise = [results[f"{_group(peers)}{OTHERWISE}", label] for peers in (sizes[-1], sizes[0])]
        grown, single = _growth(many, otherwise[0], few, otherwise[1])
        figures.append(reported(f"{label}: growth of the gap, nats", grown, replicas=single))
    lines = {
        label: end_line({float(peers): by_size[peers][label] for peers in sizes}, lambda point: point.loss)
        for label in WAYS
    }
    costs = {
        label: end_line({float(peers): by_size[peers][label] for peers in sizes}, lambda point: point.bytes)
        for label in WAYS
    }
    peers_graph = Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", {"": lines}, True)
    cost_graph = Graph(
        "cost", "Bytes against the number of peers", "peers", "bytes a parameter", {"": costs}, True, True
    )
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, checks, [peers_graph, cost_graph, distance_graph(groups)], (), figures)


def _growth(
    many: Mapping[str, Outcome], ours_of_many: Outcome, few: Mapping[str, Outcome], ours_of_few: Outcome
) -> tuple[Figure, Figure]:
    """How much the distance above DiLoCo grows with the number of peers, for the model and for single replicas.

    DiLoCo has the better outer momentum for each number of peers.
    """
    diloco_of_many, diloco_of_few = (
        outcomes[best(outcomes, [label for label in outcomes if label.startswith("DiLoCo")])]
        for outcomes in (many, few)
    )
    return (
        (ours_of_many.loss - diloco_of_many.loss) - (ours_of_few.loss - diloco_of_few.loss),
        (ours_of_many.replica_loss - diloco_of_many.replica_loss)
        - (ours_of_few.replica_loss - diloco_of_few.replica_loss),
    )


SUITE = Suite(
    name="b2",
    question="What do more peers change?",
    about="The model of B1, H = 20, 40 rounds (60 with --full, as designed), N = 8 to 64.",
    arms=_arms,
    read=_read,
    tried=(
        ("pairwise's bytes", "one exchange a round: here"),
        (
            "gap to DiLoCo",
            "as many early exchanges as make all agree on the hypercube, alpha 1, and mu 0.8: here; other settings: "
            "[defaults](defaults.md)",
        ),
    ),
)
