"""B8: a transformer, N = 4 to 32, with and without a warm start."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulations.lab import Setting
from simulations.suites.b1 import EPIDEMIC
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
    bytes_graph,
    check,
    curves_table,
    distance_graph,
    reported,
    sized,
)

__all__ = ["SUITE", "TRANSFORMER"]

TRANSFORMER: Final = Setting(peers=8, every=30, rounds=32, lr=4e-3, evaluate_every=4)
SIZES: Final = (4, 8, 16, 32)
WARMUP: Final = 120
CROSSING: Final = 10
"""peers up to which `auto` is epidemic"""
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6}),
    "DDP": ("ddp", {}),
}
COLD: Final = {label: way for label, way in WAYS.items() if label != "DDP"}


def _group(peers: int, *, warm: bool) -> str:
    return f"N = {peers}, {'warm' if warm else 'cold'}"


def _arms(scale: Scale) -> list[Arm]:
    full = scale == "full"
    base = sized(TRANSFORMER if full else replace(TRANSFORMER, rounds=16), scale)
    found: list[Arm] = []
    for peers in SIZES if scale != "quick" else (4,):
        dear = peers > 8 and not full
        cold = replace(base, peers=peers)
        warm = replace(cold, warmup=WARMUP if scale != "quick" else 5)
        found += arms(_group(peers, warm=True), warm, WAYS, problem="byte-transformer", seeds=1 if dear else None)
        if peers <= 8 or full:
            found += arms(_group(peers, warm=False), cold, COLD, problem="byte-transformer")
    return found


def _read(results: Results) -> Findings:
    checks, figures = [], []
    for group, outcomes in results.groups.items():
        peers = int(group.split()[2].rstrip(","))
        pairwise, epidemic = outcomes["pairwise"], outcomes["epidemic k=128"]
        diloco = min(outcome.loss for label, outcome in outcomes.items() if label.startswith("DiLoCo"))
        auto = epidemic if peers <= CROSSING else pairwise
        worse = auto.loss - min(pairwise.loss, epidemic.loss)
        checks.append(
            check(f"{group}: auto ({auto.arm.label}) above the better one, nats", "<= 0.02", worse, worse <= 0.02)
        )
        gap = auto.loss - diloco
        checks.append(check(f"{group}: auto above the better DiLoCo fp32, nats", "<= 0.05", gap, gap <= 0.05))
        if "DDP" in outcomes:
            ddp = auto.loss - outcomes["DDP"].loss
            figures.append(reported(f"{group}: auto above DDP at equal samples, nats", ddp))
    panels = {group: outcomes for group, outcomes in results.groups.items() if group.endswith("warm")}
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    graphs = [bytes_graph(panels), distance_graph(panels)]
    return Findings(tables, checks, [_peers(results), *graphs] if len(panels) > 1 else graphs, reported=figures)


def _peers(results: Results) -> Graph:
    panels = {}
    for warm in (True, False):
        sizes = [peers for peers in SIZES if _group(peers, warm=warm) in results.groups]
        at: dict[int, dict[str, Outcome]] = {peers: results.groups[_group(peers, warm=warm)] for peers in sizes}
        panels["warm" if warm else "cold"] = {
            label: against({float(peers): at[peers][label] for peers in sizes}, lambda point: point.loss)
            for label in (WAYS if warm else COLD)
        }
    return Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", panels, log_x=True)


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer, and which strategy when?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, warm start of 120 synchronous steps. As "
    "designed (32 rounds; N = 4 to 32, warm and cold, three seeds) it takes some nine hours of one core: "
    "--full. Here it has 16 rounds; N = 16 and 32 are played warm only, and with one seed.",
    arms=_arms,
    read=_read,
)
