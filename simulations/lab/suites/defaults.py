"""Good settings of `pairwise`: small grids around the defaults, one option at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simulations.lab.problems import ByteMlp
from simulations.lab.runs.runs import link
from simulations.lab.suites import b4
from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Reported, check, formatted, reported
from simulations.lab.suites.model import MLP
from simulations.lab.suites.tables import best

__all__ = ["SUITE"]

BASE: Final = "pairwise"
WARMUP: Final = 200

PAIRWISE: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "alpha and mu": {
        f"alpha {alpha}, mu {mu}": {"lr": alpha, "momentum": mu}
        for alpha, mu in (
            (1.0, 0.0), (0.7, 0.0), (0.5, 0.5), (0.7, 0.5), (1.0, 0.5), (0.7, 0.6), (0.5, 0.8), (0.7, 0.8), (0.9, 0.8),
            (1.0, 0.8), (0.7, 0.9),
        )
    },
    "kappa": {f"kappa {kappa}": {"kappa": kappa} for kappa in (0.0, 0.15, 0.5, 1.0)},
    "bits": {
        **{f"{bits} bits": {"bits": bits} for bits in (4, 5, 6, 8)},
        "fp32": {"codec": "fp32"},
        "int8, of states": {"codec": "int8"},
        "3 bits in the first round too": {"first_bits": 3},
    },
    "fragments": {f"M {parts}": {"fragments": parts} for parts in (2, 4)},
    "whom to meet": {
        "at random, early as well": {"schedule": ""},
        "Base-2 or hypercube in all rounds": {"schedule": "base2"},
    },
    "early exchanges": {
        **{f"{share:.0%} of the rounds, {count} each": {"early": share, "early_exchanges": count}
           for share in (0.2, 0.4, 0.7, 1.0) for count in (2, 3) if (share, count) != (0.4, 3)},
        "4 each": {"early_exchanges": 4},
        "one exchange always": {"early": 0.0, "exchanges": 1},
    },
    "later exchanges": {f"{count} later": {"exchanges": count} for count in (1, 3)},
    "bits and exchanges": {
        "4 bits, 3 early, then one": {"bits": 4, "exchanges": 1},
        "4 bits, 2 early, then one": {"bits": 4, "early_exchanges": 2, "exchanges": 1},
        "4 bits, one exchange always": {"bits": 4, "early": 0.0, "exchanges": 1},
    },
    "weight": {f"gamma {gamma}": {"weight": gamma} for gamma in (0.3, 0.4)},
    "clipping": {"no clipping": {"clip": float("inf")}, "clip 1": {"clip": 1.0}, "clip 1/2": {"clip": 0.5}},
}  # fmt: skip
RATES: Final = (0.002, 0.004, 0.008, 0.016)
WARM: Final = ("alpha and mu", "kappa", "bits", "early exchanges", "later exchanges", "bits and exchanges")
"""grids that are also played after a warm start"""
STARTS: Final = {"from scratch": 0, f"after {WARMUP} synchronous steps": WARMUP}
RIVAL: Final = "DiLoCo fp32, mu 0.8"
INNERS: Final[Ways] = {BASE: ("pairwise", {}), RIVAL: ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True})}
TUNED: Final[Ways] = {**INNERS, "DDP": ("ddp", {})}
"""at each of `RATES`"""
UNEQUAL_GROUP: Final = f"N = {b4.PEERS}, hosts 1:2:4, as 100 M parameters on 100 Mbit/s"
"""the setting of B4, where a third of all chunks is clipped"""
MUON_RATES: Final = (0.004, 0.016, 0.032)
"""beside the setting's own"""


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    quick = scale == "quick"
    base = at_scale(replace(MLP, rounds=40), scale)
    for start, steps in STARTS.items():
        setting = replace(base, warmup=steps if not quick else min(steps, 5))
        found += arms(f"pairwise, {start}", setting, {BASE: ("pairwise", {})})
        for name, grid in PAIRWISE.items():
            if steps and name not in WARM:
                continue
            ways = {label: ("pairwise", options) for label, options in grid.items()}
            found += arms(f"pairwise, {start}", setting, ways if not quick else dict(list(ways.items())[:1]))
    for inner in ("adamw", "muon"):
        found += arms(f"inner {inner}", replace(base, inner=inner), INNERS)
    for rate in MUON_RATES if not quick else MUON_RATES[:1]:
        found += arms(f"inner muon, lr {rate}", replace(base, inner="muon", lr=rate), INNERS)
    for rate in RATES if not quick else RATES[:2]:
        found += arms(f"lr {rate}", replace(base, lr=rate), TUNED)
    for every in (10, 50) if not quick else ():
        setting = replace(base, every=every, rounds=800 // every)
        found += arms(f"H {every}", setting, INNERS)
    there = link(b4.MEGABITS, b4.MILLISECONDS, ByteMlp().parameters, b4.MODELS[b4.LARGE])
    unequal = replace(base, peers=b4.PEERS, speeds=b4.SPEEDS, link=there)
    clips = {label: ("pairwise", options) for label, options in PAIRWISE["clipping"].items()}
    some = clips if not quick else dict(list(clips.items())[:1])
    return found + arms(UNEQUAL_GROUP, unequal, {BASE: ("pairwise", {}), **some})


def _read(results: Results) -> Findings:
    tables, checks = [], []
    for start in STARTS:
        group = results.groups[f"pairwise, {start}"]
        ours = group[BASE]
        rows = [("as they are", "", formatted(ours.losses), "", f"{ours.bytes:.1f}", told_gap(ours.gap))]
        rows += [
            (grid, label, formatted(group[label].losses), f"{group[label].loss - ours.loss:+.3f}",
             f"{group[label].bytes:.1f}", told_gap(group[label].gap))
            for grid, options in PAIRWISE.items() for label in options if label in group
        ]  # fmt: skip
        columns = ("", "pairwise, but", "loss", "against the defaults", "bytes a parameter", "single replicas above")
        tables.append(Table(f"pairwise, {start}", columns, rows))
        # A rival that costs no more bytes could be the default.
        rivals = [label for label in group if not group[label].bytes > 1.02 * ours.bytes and label != BASE]
        other = group[best(group, rivals)]
        name = f"{start}: defaults above the best that costs no more ({other.arm.label}), nats"
        replicas = ours.replica_loss - other.replica_loss
        checks.append(check(name, "<= 0.02", ours.loss - other.loss, replicas=replicas))
    for name in [name for name in results.groups if not name.startswith("pairwise, ")]:
        others = [
            (label, formatted(outcome.losses), f"{outcome.bytes:.1f}", told_gap(outcome.gap))
            for label, outcome in results.groups[name].items()
        ]
        tables.append(Table(name, ("", "loss", "bytes a parameter", "single replicas above"), others))
    figures = [*_rates(results), *_lengths(results), *_inner(results)]
    return Findings(tables, checks, reported=figures)


def _above(name: str, ours: Outcome, rivals: Mapping[str, Outcome]) -> list[Reported]:
    """Distance above the best rival, by the seeds that both have; nothing without a rival."""
    if not rivals:
        return []
    other = best(rivals, of=lambda outcome: outcome.loss - ours.loss)
    replicas = ours.replica_loss - rivals[other].replica_loss
    return [reported(f"{name} ({other}), nats", ours.loss - rivals[other].loss, replicas=replicas)]


def _by_rate(results: Results, label: str, prefix: str = "lr ") -> dict[str, Outcome]:
    return {group: outcomes[label] for group, outcomes in results.groups.items() if group.startswith(prefix)}


def _rates(results: Results) -> list[Reported]:
    """Every method at the same learning rates."""
    figures, own = [], f"lr {MLP.lr}"
    for label in TUNED:
        rates = _by_rate(results, label)
        if own in rates:
            figures += _above(f"{label}: {own} above its best other", rates.pop(own), rates)
    return figures


def _lengths(results: Results) -> list[Reported]:
    """At equal samples; shorter rounds cost more bytes."""
    figures = []
    for label in INNERS:
        ours = results["inner adamw", label]
        figures += _above(f"{label}: H {MLP.every} above its best other", ours, _by_rate(results, label, "H "))
    return figures


def _inner(results: Results) -> list[Reported]:
    """Every optimizer at its best learning rate of those played."""
    figures = []
    for label in INNERS:
        adamw = _by_rate(results, label) | {f"lr {MLP.lr}": results["inner adamw", label]}
        muon = {f"lr {MLP.lr}": results["inner muon", label]}
        muon |= {group.rpartition(", ")[2]: one for group, one in _by_rate(results, label, "inner muon,").items()}
        rate = best(adamw)
        figures += _above(f"{label}: AdamW at its best lr ({rate[3:]}) above Muon at its best", adamw[rate], muon)
    return figures


def told_gap(value: float) -> str:
    return f"{value:+.4f}"


SUITE = Suite(
    name="defaults",
    question="Which settings?",
    about="The model of B1, N = 16, H = 20, 40 rounds. One setting at a time differs from the default: alpha 1, "
    "mu 0.6 in the first 40 % of the rounds and 0.8 later, kappa 0.3, 3 bits (8 in the first round), one fragment, "
    "gamma 1/2. The first 40 % of the rounds have three exchanges each along the hypercube, the others two at random. "
    "Differences below the spread of the seeds mean nothing. Learning rates, H and Muon have no marks. Clipping is "
    "also played with eight hosts of 1:2:4 on B4's links. All methods train at pairwise's learning rate, where no "
    f"other is stated. The warm start here is of {WARMUP} synchronous steps. The daemon's has a suite of its own "
    "(warmstart), and so have rotation, outliers, averaged momentum and groups (trials).",
    arms=_arms,
    read=_read,
    tried="these pairs of alpha and mu at other places: [outer](outer.md); what the product does not have: "
    "[trials](trials.md)",
)
