"""B6: peers whose data differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulations.suites.b1 import EPIDEMIC, MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    arms,
    bytes_graph,
    curves_table,
    distance_graph,
    reported,
    sized,
    told,
)

__all__ = ["SUITE"]

DIRICHLET: Final = 0.1
OURS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, mu 0": ("pairwise", {"momentum": 0.0}),
    "pairwise, kappa 0": ("pairwise", {"kappa": 0.0}),
    "pairwise, kappa 0.6": ("pairwise", {"kappa": 0.6}),
    "pairwise, three exchanges always": ("pairwise", {"early": 1.0, "early_exchanges": 3}),
    "pairwise, own warm start": ("pairwise", {"warmup_steps": 200}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
}
OTHERS: Final[Ways] = {
    "DDP": ("ddp", {}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
    "local SGD": ("local-sgd", {}),
    "local only": ("local-only", {}),
}
PROBLEMS: Final = {"bytes": "byte-mlp", "digits": "digits-mlp"}


def _arms(scale: Scale) -> list[Arm]:
    found = []
    for told_as, problem in PROBLEMS.items():
        setting = replace(MLP, rounds=40) if problem == "byte-mlp" else replace(MLP, lr=3e-3, every=10, rounds=40)
        setting = sized(setting, scale)
        short: Ways = {"pairwise, H / 2": ("pairwise", {})}
        faster = replace(setting, every=max(1, setting.every // 2), rounds=2 * setting.rounds, evaluate_every=6)
        for name, data in (("iid", {}), ("Dirichlet 0.1", {"dirichlet": DIRICHLET})):
            group = f"{told_as}, {name}"
            found += arms(group, setting, {**OURS, **OTHERS}, problem=problem, data=data)
            found += arms(group, faster, short, problem=problem, data=data)
    return found


def _read(results: Results) -> Findings:
    figures, rows, notes = [], [], []
    for name in PROBLEMS:
        iid, apart = results.groups[f"{name}, iid"], results.groups[f"{name}, Dirichlet 0.1"]
        for label in apart:
            gap = apart[label].loss - iid[label].loss
            rows.append((name, label, told(iid[label].losses), told(apart[label].losses), f"{gap:+.3f}"))
        ours = [label for label in apart if label.startswith(("pairwise", "epidemic"))]
        best = min(ours, key=lambda label: apart[label].loss)
        gap = apart["pairwise"].loss - iid["pairwise"].loss
        figures.append(reported(f"{name}: pairwise, loss non-iid above iid, nats", gap))
        notes.append(
            f"On {name}, the best of ours on data that differ is {best}: {apart[best].loss:.3f} nats, where DDP "
            f"reaches {apart['DDP'].loss:.3f} and DiLoCo {apart['DiLoCo fp32, mu 0.8'].loss:.3f}."
        )
    gaps = Table("What differing data cost", ("problem", "method", "iid", "Dirichlet 0.1", "gap, nats"), rows)
    panels = {group: outcomes for group, outcomes in results.groups.items() if group.startswith("bytes")}
    tables = [gaps, *(curves_table(group, outcomes) for group, outcomes in results.groups.items())]
    return Findings(tables, (), [bytes_graph(panels), distance_graph(panels)], notes, figures)


SUITE = Suite(
    name="b6",
    question="What if every peer sees other data?",
    about="N = 16. Each peer draws from files (or digits) in shares of its own, from a Dirichlet distribution of "
    "concentration 0.1. Bytes: the model of B1, H = 20, 40 rounds. Digits: MLP, H = 10, 40 rounds.",
    arms=_arms,
    read=_read,
)
