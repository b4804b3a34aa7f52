"""B8: a transformer, N = 4 to 32, with and without a warm start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulations.lab import Setting
from simulations.suites.b1 import EPIDEMIC, WIDER
from simulations.suites.base import (
    Arm,
    Findings,
    Graph,
    Outcome,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    against,
    arms,
    best,
    bytes_graph,
    check,
    curves_table,
    distance_graph,
    reported,
    sized,
    told,
)

__all__ = ["SUITE", "TRANSFORMER"]

TRANSFORMER: Final = Setting(peers=8, every=30, rounds=32, lr=2e-3, evaluate_every=4)
"""the learning rate is the best of `RATES` for pairwise, and near the best for DDP"""
SIZES: Final = (4, 8, 16, 32)
WARMUP: Final = 120
CROSSING: Final = 10
"""peers up to which `AUTO` is epidemic"""
AUTO: Final = f"the rule proposed for auto (epidemic k=128 while at most {CROSSING} peers contribute, else pairwise)"
WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "DDP": ("ddp", {}),
}
DILOCO: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6, "plain_first": True}),
}
BETTER: Final = {True: "DiLoCo fp32, mu 0.8", False: "DiLoCo fp32, mu 0.6"}
"""after a warm start, and cold, with seed 0 at N = 4; the other of the two is played up to `FEW` peers"""
WIDE: Final[Ways] = {"epidemic k=256": ("epidemic", WIDER)}
"""up to `SOME` peers"""
FEW, SOME = 8, 16
RATES: Final = (1e-3, 4e-3, 8e-3)
"""besides the setting's own"""
TRIED: Final[Ways] = {label: WAYS[label] for label in ("pairwise", "DDP")}
BY_RATE: Final = "N = 4, cold, lr"


def _group(peers: int, *, warm: bool) -> str:
    return f"N = {peers}, {'warm' if warm else 'cold'}"


def _arms(scale: Scale) -> list[Arm]:
    full = scale == "full"
    base = sized(TRANSFORMER if full else replace(TRANSFORMER, rounds=16), scale)
    found: list[Arm] = []
    for peers in SIZES if scale != "quick" else SIZES[:1]:
        for warm in (True, False):
            some = {label: way for label, way in DILOCO.items() if full or peers <= FEW or label == BETTER[warm]}
            ways = {**WAYS, **some, **(WIDE if full or peers <= SOME else {})}
            warmup = (WARMUP if scale != "quick" else 5) if warm else 0
            setting = replace(base, peers=peers, warmup=warmup)
            found += arms(_group(peers, warm=warm), setting, ways, problem="byte-transformer")
    for rate in RATES:
        setting = replace(base, peers=SIZES[0], lr=rate)
        found += arms(f"{BY_RATE} {rate:g}", setting, TRIED, problem="byte-transformer", seeds=1)
    return found


def _read(results: Results) -> Findings:
    checks, figures = [], []
    by_rate = {group: outcomes for group, outcomes in results.groups.items() if group.startswith(BY_RATE)}
    groups = {group: outcomes for group, outcomes in results.groups.items() if group not in by_rate}
    for group, outcomes in groups.items():
        peers = int(group.split()[2].rstrip(","))
        pairwise, epidemic = outcomes["pairwise"], outcomes["epidemic k=128"]
        diloco = outcomes[best(outcomes, [label for label in outcomes if label.startswith("DiLoCo")])]
        auto = epidemic if peers <= CROSSING else pairwise
        better = outcomes[best(outcomes, ("pairwise", "epidemic k=128"))]
        name = f"{group}: {AUTO}, here {auto.arm.label}, above the better one, nats"
        replicas = auto.replica_loss - better.replica_loss
        checks.append(check(name, "<= 0.02", auto.loss - better.loss, replicas=replicas))
        for ours in (pairwise, epidemic):
            name = f"{group}: {ours.arm.label} above {diloco.arm.label}, nats"
            gap, replicas = ours.loss - diloco.loss, ours.replica_loss - diloco.replica_loss
            if ours is auto:
                checks.append(check(f"{name} (what the rule would take)", "<= 0.05", gap, replicas=replicas))
            else:
                figures.append(reported(name, gap, replicas=replicas))
            replicas = ours.replica_loss - outcomes["DDP"].replica_loss
            ahead = ours.loss - outcomes["DDP"].loss
            figures.append(
                reported(f"{group}: {ours.arm.label} above DDP at equal samples, nats", ahead, replicas=replicas)
            )
    panels = {group: outcomes for group, outcomes in groups.items() if group.endswith("warm")}
    tables = [curves_table(group, outcomes) for group, outcomes in groups.items()]
    own = groups[_group(SIZES[0], warm=False)]
    rates = {f"lr {group.rpartition(' ')[2]}": outcomes for group, outcomes in by_rate.items()}
    rows = [
        (rate, *(told(outcomes[label].losses) for label in TRIED))
        for rate, outcomes in {f"lr {TRANSFORMER.lr:g}": own, **rates}.items()
    ]
    tables.append(Table(f"Loss by the learning rate, N = {SIZES[0]}, cold", ("", *TRIED), rows))
    graphs = [bytes_graph(panels), distance_graph(panels)]
    return Findings(tables, checks, [_peers(groups), *graphs] if len(panels) > 1 else graphs, reported=figures)


def _peers(groups: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    panels = {}
    for warm in (True, False):
        at = {peers: groups[_group(peers, warm=warm)] for peers in SIZES}
        panels["warm" if warm else "cold"] = {
            label: against({float(peers): at[peers][label] for peers in SIZES}, lambda point: point.loss)
            for label in (*WAYS, BETTER[warm])
        }
    return Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", panels, log_x=True)


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer, and which strategy when?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, N = 4 to 32, after a warm start of 120 "
    "synchronous steps and cold. As designed (32 rounds) it takes twice as long: --full. Here it has 16 rounds; "
    f"epidemic k=256 is played up to N = {SOME}, DiLoCo's other mu up to N = {FEW}. The learning rate is one for all, "
    "the best of a few of one seed at N = 4, and not tuned for each method and size.",
    arms=_arms,
    read=_read,
    tried=(
        ("above the better one", "the other of the two strategies, here; other sizes, on another model: [b2](b2.md)"),
    ),
)
