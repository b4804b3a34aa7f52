"""Arms of B1: every method of the laboratory from scratch, after a warm start, at equal bytes, at other rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simulations.lab.core import Setting
from simulations.lab.suites.arms import Ways, arms, at_scale, with_short_start
from simulations.lab.suites.base import Arm, Scale
from simulations.lab.suites.model import MLP, SPARSELOCO, WARMUP
from simulations.lab.suites.rates import RATES

__all__ = [
    "AT_EQUAL",
    "COLD_GROUP",
    "FACTORS",
    "FEWER_GROUP",
    "LEAN",
    "NOLOCO",
    "OWN_WARM",
    "RATED",
    "RATES_GROUP",
    "SHORT_WARM",
    "TUNED",
    "WARM_GROUP",
    "b1_arms",
    "rated",
]

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

TUNED: Final[Ways] = {
    "DiLoCo fp32, alpha 1, mu 0.6": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}),
    "DiLoCo fp32, alpha 0.9, mu 0.8": ("diloco", {"alpha": 0.9, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, alpha 1": ("diloco", {"alpha": 1.0, "plain_first": True}),
    "CHOCO, local, gamma 0.5": ("choco-local", {"gamma": 0.5}),
    "CHOCO, local, gamma 0.25": ("choco-local", {"gamma": 0.25}),
    "GASLoC, gamma 0.7": ("gasloc", {"gamma": 0.7}),
}
"""shown beside settings that are better"""

LEAN: Final = "pairwise, 3 bits, two exchanges in 20 % of the rounds"
"""by the suite defaults, the best variant that costs no more than one exchange a round"""
OURS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
    LEAN: ("pairwise", {"early": 0.2, "early_exchanges": 2, "exchanges": 1}),
    "pairwise, fp32": ("pairwise", {"codec": "fp32"}),
    "pairwise, mu 0.8": ("pairwise", {"momentum": 0.8}),
    "pairwise, no outer step": ("pairwise", {"lr": 1.0, "momentum": 0.0}),
}

FIELD: Final[Ways] = {
    "DDP": ("ddp", {}),
    "local SGD": ("local-sgd", {}),
    "DiLoCo fp32": ("diloco", {"plain_first": True}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6, "plain_first": True}),
    "DiLoCo fp32, alpha 1, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, as in its paper": ("diloco", {}),
    "DiLoCo fp32, mu 0.8, as in its paper": ("diloco", {"mu": 0.8}),
    "DiLoCo 4-bit, mu 0.8": ("diloco-4bit", {"mu": 0.8, "plain_first": True}),
    "DiLoCo 4-bit, alpha 1, mu 0.8": ("diloco-4bit", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "SparseLoCo k=128": ("sparseloco", SPARSELOCO),
    "SparseLoCo k=128, alpha 1": ("sparseloco", {**SPARSELOCO, "alpha": 1.0}),
    "GASLoC": ("gasloc", {}),
    "SwarmSGD": ("swarm", {}),
    "D-PSGD exponential, local": ("d-psgd-exponential-local", {}),
    "SGP, local": ("sgp-local", {}),
    "CHOCO, local": ("choco-local", {"gamma": 0.8}),
    "SPARTA": ("sparta", {}),
    "local only": ("local-only", {}),
}

EVERY_STEP: Final[Ways] = {
    "D-PSGD exponential": ("d-psgd-exponential", {}),
    "SGP": ("sgp", {}),
    "CHOCO": ("choco", {"gamma": 0.25}),
    "CHOCO, gamma 0.5": ("choco", {"gamma": 0.5}),
    "CHOCO, gamma 0.8": ("choco", {"gamma": 0.8}),
    "AD-PSGD": ("ad-psgd", {}),
    "DeMo": ("demo", {"lr": 0.016}),
    "DeMo, lr 0.032": ("demo", {"lr": 0.032}),
    "DeMo, lr 0.008": ("demo", {"lr": 0.008}),
    "DeMo k=8": ("demo", {"coefficients": 8, "lr": 0.008}),
    "DeMo k=8, lr 0.016": ("demo", {"coefficients": 8, "lr": 0.016}),
    "DeMo k=8, lr 0.004": ("demo", {"coefficients": 8, "lr": 0.004}),
    "DeMo k=32": ("demo", {"coefficients": 32, "lr": 0.016}),
    "DeMo k=32, lr 0.008": ("demo", {"coefficients": 32, "lr": 0.008}),
    "parameter server, asynchronous": ("server-async", {}),
}
"""they send many bytes"""

OTHERWISE: Final[Ways] = {
    "parameter server": ("server", {}),
    "D-PSGD ring": ("d-psgd-ring", {}),
    "D-PSGD ring, local": ("d-psgd-ring-local", {}),
}
"""the server makes the same steps as DDP, and rings are weaker graphs"""

FEWER: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "DiLoCo fp32, alpha 1, mu 0.6, H 133": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}, 133),
    "DiLoCo fp32, alpha 1, mu 0.8, H 133": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 133),
    "DiLoCo 4-bit, alpha 1, mu 0.8, H 17": ("diloco-4bit", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 17),
    "DiLoCo fp32, alpha 1, mu 0.6, H 240": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}, 240),
    "DiLoCo fp32, alpha 1, mu 0, H 240": ("diloco", {"alpha": 1.0, "mu": 0.0, "plain_first": True}, 240),
    "DiLoCo 4-bit, alpha 1, mu 0.8, H 31": ("diloco-4bit", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 31),
}
"""as many steps, in rounds so long that they cost about as many bytes as pairwise; the last three, as pairwise with one
exchange a round
"""
EQUALLED: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "local SGD, H 133": ("local-sgd", {}, 133),
    **{
        f"{label}, H 150": (NOLOCO[label][0], dict(NOLOCO[label][1]), 150)
        for label in ("NoLoCo 0.7, 0.7, 0.7", "NoLoCo 0.3, 0.7, 0.9", "NoLoCo 0.0, 1.0, 1.0")
    },
    "SwarmSGD, H 70": ("swarm", {}, 70),
    "GASLoC, H 70": ("gasloc", {}, 70),
    "D-PSGD exponential, local, H 70": ("d-psgd-exponential-local", {}, 70),
    "SGP, local, H 70": ("sgp-local", {}, 70),
    "CHOCO, local, H 5": ("choco-local", {"gamma": 0.8}, 5),
    "SparseLoCo k=128, H 15": ("sparseloco", SPARSELOCO, 15),
    "SPARTA, a share of 0.0075": ("sparta", {"p": 0.0075}, 20),
}
"""the same of other methods, at pairwise's bytes"""
AT_EQUAL: Final[dict[str, tuple[str, ...]]] = {
    "pairwise": (*tuple(FEWER)[:3], *EQUALLED),
    "pairwise, one exchange a round": tuple(FEWER)[3:],
}

WARM: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
    "DiLoCo fp32": ("diloco", {"plain_first": True}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, alpha 1, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, as in its paper": ("diloco", {}),
}

OWN_WARM: Final[Ways] = {
    "pairwise, its own warm start": ("pairwise", {"warmup_steps": WARMUP}),
    "pairwise, its own, of one exchange a round": ("pairwise", {"warmup_steps": WARMUP, "warmup_exchanges": 1}),
    "pairwise, its own, then one exchange a round": (
        "pairwise",
        {"warmup_steps": WARMUP, "early": 0.0, "exchanges": 1},
    ),
    "pairwise, its own, one exchange a round in both": (
        "pairwise",
        {"warmup_steps": WARMUP, "warmup_exchanges": 1, "early": 0.0, "exchanges": 1},
    ),
}
"""the daemon's warm start, with no synchronous steps: exchanges back to back, three in each round of five steps, or one
"""
SHORT: Final = 50
SHORT_WARM: Final[Ways] = {
    f"pairwise, its own of {SHORT} steps, one exchange a round in both": (
        "pairwise",
        {"warmup_steps": SHORT, "warmup_exchanges": 1, "early": 0.0, "exchanges": 1},
    ),
}
"""with as many more rounds as the start is shorter"""
OTHERS_OWN: Final[Ways] = {
    "DiLoCo fp32, alpha 1, mu 0.8, its own warm start": (
        "diloco",
        {"alpha": 1.0, "mu": 0.8, "plain_first": True, "warmup_steps": WARMUP},
    ),
}

COLD_GROUP: Final = "from scratch"
WARM_GROUP: Final = "after a warm start"
FEWER_GROUP: Final = "at as many bytes"
RATES_GROUP: Final = "learning rates"
FACTORS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""of the setting's rate: from half to twice the rate at which a method is played"""
RATED: Final[Ways] = {
    label: way
    for label, way in {**OURS, **FIELD, **EVERY_STEP, **NOLOCO}.items()
    if not label.startswith(("CHOCO, g", "pairwise, mu"))
}
"""without CHOCO at other gammas, and pairwise at another mu"""


def b1_arms(scale: Scale) -> list[Arm]:
    cold = at_scale(MLP, scale)
    warm = replace(cold, warmup=WARMUP if scale != "quick" else 5)
    own: Ways = {**OWN_WARM, **OTHERS_OWN}
    more = replace(cold, rounds=cold.rounds + (WARMUP - SHORT) // cold.every)
    if scale == "quick":
        some: Ways = {**OURS, **FIELD, **dict(list(NOLOCO.items())[:2])}
        starts = {**own, **SHORT_WARM}
        short = {label: (method, with_short_start(options, scale)) for label, (method, options) in starts.items()}
        fewer = {label: (method, options) for label, (method, options, _) in (FEWER | EQUALLED).items()}
        found = [*arms(COLD_GROUP, cold, some), *arms(WARM_GROUP, warm, WARM), *arms(WARM_GROUP, cold, short)]
        return [*found, *arms(FEWER_GROUP, cold, fewer)]
    found = [
        *arms(COLD_GROUP, cold, {**OURS, **FIELD, **EVERY_STEP, **OTHERWISE, **TUNED, **NOLOCO}, rates=RATES),
        *_at_rates(cold),
    ]
    steps = cold.every * cold.rounds
    for label, (method, options, every) in (FEWER | EQUALLED).items():
        setting = replace(cold, every=every, rounds=steps // every, evaluate_every=1)
        found += arms(FEWER_GROUP, setting, {label: (method, options)}, rates=RATES)
    found += [*arms(WARM_GROUP, warm, WARM, rates=RATES), *arms(WARM_GROUP, cold, own, rates=RATES)]
    return [*found, *arms(WARM_GROUP, more, SHORT_WARM, rates=RATES)]


def rated(label: str, factor: float) -> str:
    return f"{label}, lr {factor * MLP.lr:g}"


def _at_rates(setting: Setting) -> list[Arm]:
    """Every method at each of its rates, its own included."""
    found = []
    for label, (method, options) in RATED.items():
        if method != "demo":  # its rate is an option, see TUNED
            played = RATES.get(method, 1.0)
            for factor in (factor for factor in FACTORS if min(0.5 * played, 1.0) <= factor <= 2.0 * played):
                faster = replace(setting, lr=setting.lr * factor)
                found += arms(RATES_GROUP, faster, {rated(label, factor): (method, options)})
    return found
