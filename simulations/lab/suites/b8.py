"""B8: does it hold for a transformer?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from simulations.lab.core import Setting
from simulations.lab.suites.arms import SHORT_START, Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite
from simulations.lab.suites.figures import Check, Figure, Reported, check, reported
from simulations.lab.suites.graphs import bytes_graph
from simulations.lab.suites.model import START
from simulations.lab.suites.tables import best, curves_table

__all__ = ["SUITE", "TRANSFORMER", "WARMUP"]

TRANSFORMER: Final = Setting(peers=8, every=30, rounds=32, lr=2e-3, evaluate_every=4)
WARMUP: Final = 120
SIZES: Final = (8, 16, 32)
SOME: Final = 8
"""peers up to which DDP has all seeds"""
MANY: Final = 32
"""peers from which there are fewer rounds"""
FEWER: Final = 16
OURS: Final = "pairwise"
OWN: Final = f"{OURS}, {START}"
OWN_SIZES: Final = (8, 16)
DDP: Final[Ways] = {"DDP": ("ddp", {})}
DILOCO: Final[Mapping[bool, Ways]] = {
    True: {"DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True})},
    False: {"DiLoCo fp32, mu 0.6": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True})},
}
"""after a warm start, and cold: the better of both with seed 0 at N = 4 and 16 rounds"""


def _group(peers: int, *, warm: bool) -> str:
    return f"N = {peers}, {'warm' if warm else 'cold'}"


def _arms(scale: Scale) -> list[Arm]:
    full, quick = scale == "full", scale == "quick"
    base = at_scale(TRANSFORMER, scale)
    warmup = WARMUP if not quick else SHORT_START
    found: list[Arm] = []
    for peers, warm in product(SIZES if not quick else SIZES[:1], (True, False)):
        cold = replace(base, peers=peers)
        if peers >= MANY and not full:
            cold = replace(cold, rounds=min(base.rounds, FEWER))
        setting = replace(cold, warmup=warmup if warm else 0)
        ways = {OURS: ("pairwise", {}), **DILOCO[warm]}
        group = _group(peers, warm=warm)
        found += arms(group, setting, ways, problem="byte-transformer")
        found += arms(group, setting, DDP, problem="byte-transformer", seeds=None if peers <= SOME or full else 1)
        if warm and peers in OWN_SIZES:
            found += arms(group, cold, {OWN: ("pairwise", {"warmup_steps": warmup})}, problem="byte-transformer")
    return found


def _read(results: Results) -> Findings:
    checks: list[Check] = []
    figures: list[Reported] = []
    for group, outcomes in results.groups.items():
        found, others = _judged(group, outcomes)
        checks += found
        figures += others
    panels = {group: outcomes for group, outcomes in results.groups.items() if group.endswith("warm")}
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, checks, [bytes_graph(panels)], (), figures)


def _judged(group: str, outcomes: Mapping[str, Outcome]) -> tuple[list[Check], list[Reported]]:
    """Marks of pairwise, from the given start and from its own."""
    checks, figures = [], []
    diloco = [label for label in outcomes if label.startswith("DiLoCo")]
    for ours in (label for label in (OURS, OWN) if label in outcomes):
        other, above, replicas = _above(outcomes, ours, diloco)
        checks.append(check(f"{group}: {ours} above {other}, nats", "<= 0.05", above, replicas=replicas))
        _, above, replicas = _above(outcomes, ours, ("DDP",))
        figures.append(reported(f"{group}: {ours} above DDP at equal samples, nats", above, replicas=replicas))
    return checks, figures


def _above(outcomes: Mapping[str, Outcome], label: str, others: Sequence[str]) -> tuple[str, Figure, Figure]:
    """The best rival by the seeds that both have, the distance above it, and that of single replicas."""
    ours = outcomes[label]
    other = best(outcomes, others, lambda outcome: outcome.loss - ours.loss)
    return other, ours.loss - outcomes[other].loss, ours.replica_loss - outcomes[other].replica_loss


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, 32 rounds as designed, N = 8 to 32, "
    f"after a warm start of {WARMUP} synchronous steps and cold. Up to N = {OWN_SIZES[-1]} there is also the "
    "daemon's warm start, of as many steps. DiLoCo has alpha 1, which was better than 0.7. At N = "
    f"{MANY} there are {FEWER} rounds (32 with --full). Above N = {SOME} DDP has one seed. Differences use the "
    "seeds that both have. All methods have one learning rate, at N = 4 the best of each among half, once and twice.",
    arms=_arms,
    read=_read,
)
