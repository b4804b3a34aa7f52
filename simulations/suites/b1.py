"""B1: one language model, N = 16, every method of the laboratory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulations.lab import Setting
from simulations.suites.base import (
    Arm,
    Check,
    Findings,
    Outcome,
    Results,
    Scale,
    Suite,
    Ways,
    arms,
    bytes_graph,
    bytes_table,
    check,
    curves_table,
    distance_graph,
    reported,
    seconds_graph,
    sized,
)

__all__ = ["EPIDEMIC", "MLP", "SUITE"]

MLP: Final = Setting(peers=16, every=20, rounds=60, lr=8e-3, evaluate_every=3)
"""What B1 to B6 train with; the learning rate is near the best of pairwise, DiLoCo and DDP (suite defaults)."""

EPIDEMIC: Final = {"compressor": "topk128", "alpha": 2.0}
"""alpha 1 is for runs longer than these (suite defaults)"""

NOLOCO: Final[Ways] = {
    f"NoLoCo {alpha}, {beta}, {gamma}": ("noloco", {"alpha": alpha, "beta": beta, "gamma": gamma})
    for alpha, beta, gamma in (
        (0.5, 0.7, 0.7),
        (0.3, 0.7, 0.9),
        (0.0, 1.0, 1.0),
        (0.5, 0.5, 0.5),
        (0.3, 0.9, 0.9),
        (0.7, 0.5, 0.7),
        (0.7, 0.7, 0.7),
        (0.8, 0.5, 0.5),
    )
}

OURS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "pairwise, fp32": ("pairwise", {"codec": "fp32"}),
    "epidemic k=64": ("epidemic", {**EPIDEMIC, "compressor": "topk64"}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "epidemic k=128, alpha 1": ("epidemic", {**EPIDEMIC, "alpha": 1.0}),
    "epidemic k=256": ("epidemic", {**EPIDEMIC, "compressor": "topk256"}),
}

FIELD: Final[Ways] = {
    "DDP": ("ddp", {}),
    "local SGD": ("local-sgd", {}),
    "DiLoCo fp32": ("diloco", {}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6}),
    "DiLoCo 4-bit": ("diloco-4bit", {}),
    "DiLoCo 4-bit, mu 0.8": ("diloco-4bit", {"mu": 0.8}),
    "GASLoC": ("gasloc", {}),
    "GASLoC, gamma 0.7": ("gasloc", {"gamma": 0.7}),
    "GASLoC, gamma 0.8": ("gasloc", {"gamma": 0.8}),
    "SwarmSGD": ("swarm", {}),
    "D-PSGD ring, local": ("d-psgd-ring-local", {}),
    "D-PSGD exponential, local": ("d-psgd-exponential-local", {}),
    "SGP, local": ("sgp-local", {}),
    "CHOCO, local": ("choco-local", {}),
    "SPARTA": ("sparta", {}),
    "local only": ("local-only", {}),
}

EVERY_STEP: Final[Ways] = {
    "AD-PSGD": ("ad-psgd", {}),
    "DeMo": ("demo", {}),
    "parameter server, asynchronous": ("server-async", {}),
}
"""dear in bytes and here also in time: one seed"""

FEWER: Final[dict[str, tuple[str, int]]] = {
    "DiLoCo fp32, mu 0.8, H 120": ("diloco", 120),
    "DiLoCo fp32, mu 0.8, H 240": ("diloco", 240),
    "DiLoCo 4-bit, mu 0.8, H 30": ("diloco-4bit", 30),
}
"""as many steps in rounds so long that they cost about as many bytes as pairwise's: as it is, and (the last two) with
one exchange a round"""
AT_EQUAL: Final[dict[str, tuple[str, ...]]] = {
    "pairwise": ("DiLoCo fp32, mu 0.8, H 120", "DiLoCo 4-bit, mu 0.8"),
    "pairwise, one exchange a round": ("DiLoCo fp32, mu 0.8, H 240", "DiLoCo 4-bit, mu 0.8, H 30"),
}

WARM: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "DiLoCo fp32": ("diloco", {}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
}

OWN_WARM: Final[Ways] = {"pairwise, its own warm start": ("pairwise", {"warmup_steps": 200})}
"""no synchronous steps: exchanges back to back, as in the daemon"""

DRAWN: Final = (
    "pairwise",
    "pairwise, one exchange a round",
    "epidemic k=64",
    "epidemic k=128",
    "DDP",
    "DiLoCo fp32, mu 0.8",
    "DiLoCo 4-bit, mu 0.8",
    "local SGD",
    "GASLoC",
    "SwarmSGD",
    "CHOCO, local",
    "SPARTA",
    "DeMo",
    "local only",
)
"""not all, or nothing would be seen"""
BUDGETS: Final = (5.0, 10.0, 20.0, 30.0, 60.0, 240.0, 450.0)
"""bytes a parameter"""
COLD_GROUP: Final = "from scratch"
WARM_GROUP: Final = "after 200 synchronous steps"
FEWER_GROUP: Final = "at as many bytes"


def _arms(scale: Scale) -> list[Arm]:
    cold = sized(MLP, scale)
    warm = replace(cold, warmup=200 if scale != "quick" else 5)
    if scale == "quick":
        few = {
            **OURS,
            **{label: FIELD[label] for label in ("DDP", "DiLoCo fp32", "DiLoCo 4-bit, mu 0.8", "local only")},
        }
        noloco = dict(list(NOLOCO.items())[:2])
        own = {label: (method, {**options, "warmup_steps": 5}) for label, (method, options) in OWN_WARM.items()}
        found = [*arms(COLD_GROUP, cold, few | noloco), *arms(WARM_GROUP, warm, WARM), *arms(WARM_GROUP, cold, own)]
        return found + arms(FEWER_GROUP, cold, {label: (method, {"mu": 0.8}) for label, (method, _) in FEWER.items()})
    found = [
        *arms(COLD_GROUP, cold, OURS),
        *arms(COLD_GROUP, cold, FIELD),
        *arms(COLD_GROUP, cold, EVERY_STEP, seeds=1),
        *arms(COLD_GROUP, cold, NOLOCO),
    ]
    steps = cold.every * cold.rounds
    for label, (method, every) in FEWER.items():
        setting = replace(cold, every=every, rounds=steps // every, evaluate_every=1)
        found += arms(FEWER_GROUP, setting, {label: (method, {"mu": 0.8})})
    return [*found, *arms(WARM_GROUP, warm, WARM), *arms(WARM_GROUP, cold, OWN_WARM)]


def _read(results: Results) -> Findings:
    cold, warm = results.groups[COLD_GROUP], results.groups[WARM_GROUP]
    ours, lean, diloco = cold["pairwise"], cold["pairwise, one exchange a round"], _best_diloco(cold)
    stable = [outcome.loss for label, outcome in cold.items() if label in NOLOCO and math.isfinite(outcome.loss)]
    noloco = min(stable, default=math.nan)
    checks = [
        *_against_diloco(cold),
        *_against_diloco_warm(warm, _best_diloco(cold).bytes),
        check("replica gap of pairwise, nats", "<= 0.01", ours.gap, ours.gap <= 0.01, digits=4),
        check("pairwise below the best NoLoCo of the grid, nats", "> 0", noloco - ours.loss, ours.loss < noloco),
        check("the same with one exchange a round", "> 0", noloco - lean.loss, lean.loss < noloco),
    ]
    shown = [label for label in cold if label not in NOLOCO]
    best = min((label for label in cold if label in NOLOCO), key=lambda label: cold[label].loss)
    panels = {COLD_GROUP: {label: cold[label] for label in (*DRAWN, best) if label in cold}, WARM_GROUP: warm}
    fewer = cold | results.groups[FEWER_GROUP]
    figures = [
        reported(f"{label} below {other} at about as many bytes, nats", fewer[other].loss - fewer[label].loss)
        for label, others in AT_EQUAL.items()
        for other in others
    ]
    equal = {label: fewer[label] for one, others in AT_EQUAL.items() for label in (one, *others)}
    blocks, escalated = ours.fact("blocks"), ours.fact("escalated")
    notes = [
        f"Of pairwise's blocks {100 * escalated / blocks:.1f} % were escalated, of its chunks "
        f"{100 * ours.fact('clipped') / ours.fact('chunks'):.2f} % clipped. Bytes are whole frames as encrypted, with "
        "their headers: with a model as small as this they are some 10 % more a parameter than with one of millions.",
        f"DDP, which exchanges in every step, is {diloco.loss - cold['DDP'].loss:.3f} nats better than DiLoCo and "
        f"{ours.loss - cold['DDP'].loss:.3f} better than pairwise, at {cold['DDP'].bytes / ours.bytes:.0f} times "
        "pairwise's bytes.",
    ]
    return Findings(
        [
            curves_table("From scratch", cold),
            curves_table("After a warm start", warm),
            curves_table("At as many bytes and as many samples", equal, "Each at the end of a run of its own."),
            bytes_table({label: cold[label] for label in (*shown, best)}, BUDGETS),
        ],
        checks,
        [bytes_graph(panels), seconds_graph(panels, "Loss against steps (links take no time)"), distance_graph(panels)],
        notes,
        figures,
    )


def _best_diloco(group: Mapping[str, Outcome]) -> Outcome:
    """At its best outer momentum of those tried."""
    return min((outcome for label, outcome in group.items() if label.startswith("DiLoCo fp32")), key=_loss)


def _against_diloco(cold: Mapping[str, Outcome]) -> list[Check]:
    diloco, found = _best_diloco(cold), []
    for label in ("pairwise", "pairwise, one exchange a round"):
        loss, ratio = cold[label].loss - diloco.loss, diloco.bytes / cold[label].bytes
        found += [
            check(f"{label}: loss above DiLoCo fp32's, nats", "<= 0.05", loss, loss <= 0.05),
            check(f"{label}: DiLoCo's bytes over its own", ">= 12", ratio, ratio >= 12.0, "x", 1),
        ]
    return found


def _against_diloco_warm(warm: Mapping[str, Outcome], bytes_: float) -> list[Check]:
    """Synchronous steps cost DDP's bytes, whoever takes them: the bytes compared are those of rounds."""
    diloco, found = _best_diloco(warm), []
    for label in ("pairwise", *OWN_WARM):
        loss = warm[label].loss - diloco.loss
        found.append(check(f"warm, {label}: loss above warm DiLoCo fp32's, nats", "<= 0.05", loss, loss <= 0.05))
    ratio = bytes_ / warm[next(iter(OWN_WARM))].bytes
    name = "warm, pairwise, its own warm start: bytes of DiLoCo's rounds over all of its own"
    return [*found, check(name, ">= 9", ratio, ratio >= 9.0, "x", 1)]


def _loss(outcome: Outcome) -> float:
    return outcome.loss


SUITE = Suite(
    name="b1",
    question="How good a model for how many bytes?",
    about="Byte-level MLP of 51,584 parameters on the standard library's sources, AdamW, N = 16, H = 20, 60 rounds, "
    "as in algorithms section 10. Links take no time here; B4, B9 and the suite clock are about time.",
    arms=_arms,
    read=_read,
)
