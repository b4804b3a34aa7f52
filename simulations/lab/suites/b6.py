"""B6: peers whose data differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Results, Scale, Suite, Table
from simulations.lab.suites.figures import formatted, reported
from simulations.lab.suites.graphs import bytes_graph, distance_graph
from simulations.lab.suites.model import MLP, diloco
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import best, curves_table

__all__ = ["SUITE"]

OURS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, mu 0": ("pairwise", {"momentum": 0.0}),
    "pairwise, mu 0.8": ("pairwise", {"momentum": 0.8}),
    "pairwise, mu 0.8, kappa 0.6": ("pairwise", {"momentum": 0.8, "kappa": 0.6}),
    "pairwise, kappa 0": ("pairwise", {"kappa": 0.0}),
    "pairwise, kappa 0.6": ("pairwise", {"kappa": 0.6}),
    "pairwise, three exchanges always": ("pairwise", {"early": 1.0, "early_exchanges": 3}),
}
HALF, OWN = "pairwise, H / 2", "pairwise, own warm start"
DILOCO: Final = "DiLoCo fp32, mu 0.8"
OTHERS: Final[Ways] = {
    "DDP": ("ddp", {}),
    DILOCO: ("diloco", diloco(40)),
    "local SGD": ("local-sgd", {}),
    "local only": ("local-only", {}),
}
FEW: Final = ("pairwise", *OTHERS)
"""for data that hardly differ"""
WARMUP: Final = 200
SPLITS: Final[dict[str, dict[str, float]]] = {
    "bytes": {"Dirichlet 0.1": 0.1, "Dirichlet 0.005": 0.005},
    "digits": {"Dirichlet 0.1": 0.1},
}
"""of 468 files, or of ten classes: total concentrations of 47 and 2.3, and of 1"""
HARDEST: Final = {"bytes": "Dirichlet 0.005", "digits": "Dirichlet 0.1"}
PROBLEMS: Final = {"bytes": "byte-mlp", "digits": "digits-mlp"}


def _arms(scale: Scale) -> list[Arm]:
    found = []
    for told_as, problem in PROBLEMS.items():
        setting = replace(MLP, rounds=40) if problem == "byte-mlp" else replace(MLP, lr=3e-3, every=10, rounds=40)
        setting = at_scale(setting, scale)
        rates = RATES if problem == "byte-mlp" else {}
        half = max(1, setting.every // 2)
        faster = replace(setting, every=half, rounds=2 * setting.rounds, evaluate_every=6)
        # The start is part of the run, so all methods make equally many steps.
        warmup = WARMUP if scale != "quick" else setting.every
        fewer_rounds = replace(setting, rounds=setting.rounds - warmup // setting.every)
        splits: dict[str, dict[str, float]] = {
            "iid": {},
            **{split: {"dirichlet": value} for split, value in SPLITS[told_as].items()},
        }
        for split, data in splits.items():
            group, all_of = f"{told_as}, {split}", split in ("iid", HARDEST[told_as])
            ways = {label: way for label, way in {**OURS, **OTHERS}.items() if all_of or label in FEW}
            found += arms(group, setting, ways, problem=problem, data=data, rates=rates)
            if all_of:
                own = ("pairwise", {"warmup_steps": warmup})
                found += arms(group, faster, {HALF: ("pairwise", {})}, problem=problem, data=data)
                found += arms(group, fewer_rounds, {OWN: own}, problem=problem, data=data)
    return found


def _read(results: Results) -> Findings:
    figures, rows, notes = [], [], []
    for name, split in ((name, split) for name, splits in SPLITS.items() for split in splits):
        iid, apart = results.groups[f"{name}, iid"], results.groups[f"{name}, {split}"]
        for label in apart:
            gap = apart[label].loss - iid[label].loss
            rows.append(
                (name, split, label, formatted(iid[label].losses), formatted(apart[label].losses), formatted(gap))
            )
        ours = [label for label in apart if label.startswith("pairwise")]
        least = best(apart, ours)
        for label in ("pairwise", "DDP"):
            replicas = apart[label].replica_loss - iid[label].replica_loss
            gap = apart[label].loss - iid[label].loss
            figures.append(reported(f"{name}: {label}, loss at {split} above iid, nats", gap, replicas=replicas))
        if split == HARDEST[name]:
            notes.append(
                f"On {name} at {split}, the best of ours is {least}: {apart[least].loss:.3f} nats, where DDP reaches "
                f"{apart['DDP'].loss:.3f} and DiLoCo {apart[DILOCO].loss:.3f}."
            )
    columns = ("problem", "peers' shares", "method", "iid", "they differ", "gap, nats")
    gaps = Table("What differing data cost", columns, rows)
    panels = {group: outcomes for group, outcomes in results.groups.items() if group.startswith("bytes")}
    tables = [gaps, *(curves_table(group, outcomes) for group, outcomes in results.groups.items())]
    return Findings(tables, (), [bytes_graph(panels), distance_graph(panels)], notes, figures)


SUITE = Suite(
    name="b6",
    question="What if every peer sees other data?",
    about="N = 16. Each peer draws from files (or digits) in shares of its own, from a Dirichlet distribution. With "
    "ten classes, concentration 0.1 leaves a peer one or two. With 468 files it leaves some 36 of the 188 "
    "that count, so peers hardly differ; 0.005 leaves three. Bytes: the model of B1, H = 20, 40 rounds. "
    "Digits: MLP, H = 10, 40 rounds. All methods make equally many steps, their own warm start included.",
    arms=_arms,
    read=_read,
)
