"""B1: one language model, N = 16, every method of the laboratory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simulations.lab.core import Setting
from simulations.lab.suites.base import (
    Arm,
    Check,
    Findings,
    Outcome,
    Reported,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    arms,
    best,
    bytes_graph,
    bytes_table,
    check,
    curves_table,
    distance_graph,
    reported,
    seconds_graph,
    sized,
    started,
    told,
)
from simulations.lab.suites.rates import RATES

__all__ = ["EPIDEMIC", "MLP", "SUITE", "WARMUP", "WIDER", "diloco"]

MLP: Final = Setting(peers=16, every=20, rounds=60, lr=8e-3, evaluate_every=3)
"""What B1 to B6 train with; the learning rate is near the best of pairwise and DiLoCo, others have theirs (rates)."""

EPIDEMIC: Final = {"compressor": "topk128", "alpha": 2.0}
"""alpha 1 is for runs longer than these (suite defaults)"""
WIDER: Final = {**EPIDEMIC, "compressor": "topk256"}
"""the daemon's default"""

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
"""beside settings that are better"""

FEW: Final = 30


def diloco(rounds: int, peers: int = MLP.peers) -> dict[str, Any]:
    """DiLoCo's options in other suites: the outer step and momentum that were the better ones in so many outer steps of
    so many peers (alpha 1 of 0.7, 0.9 and 1; mu 0.8 in 60 rounds of 16, 0.6 in 15 and in 10, and of 8 peers in B4 and
    B9), and a first outer step as plain as pairwise's, which was better in all."""
    return {"alpha": 1.0, "mu": 0.8 if rounds >= FEW and peers >= MLP.peers else 0.6, "plain_first": True}


LEAN: Final = "pairwise, 3 bits, two exchanges in 20 % of the rounds"
"""the best of what costs as little as one exchange a round, by the suite defaults"""
OURS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    LEAN: ("pairwise", {"bits": 3, "early": 0.2, "early_exchanges": 2}),
    "pairwise, fp32": ("pairwise", {"codec": "fp32"}),
    "pairwise, mu 0.8": ("pairwise", {"momentum": 0.8}),
    "pairwise, no outer step": ("pairwise", {"lr": 1.0, "momentum": 0.0}),
    "epidemic k=64": ("epidemic", {**EPIDEMIC, "compressor": "topk64"}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "epidemic k=256": ("epidemic", WIDER),
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
    "SparseLoCo k=128": ("sparseloco", EPIDEMIC),
    "SparseLoCo k=128, alpha 1": ("sparseloco", {**EPIDEMIC, "alpha": 1.0}),
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
"""dear in bytes"""

OTHERWISE: Final[Ways] = {
    "parameter server": ("server", {}),
    "D-PSGD ring": ("d-psgd-ring", {}),
    "D-PSGD ring, local": ("d-psgd-ring-local", {}),
}
"""the server makes DDP's very steps, and rings are the lesser graphs"""

FEWER: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "DiLoCo fp32, alpha 1, mu 0.6, H 133": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}, 133),
    "DiLoCo fp32, alpha 1, mu 0.8, H 133": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 133),
    "DiLoCo 4-bit, alpha 1, mu 0.8, H 17": ("diloco-4bit", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 17),
    "DiLoCo fp32, alpha 1, mu 0.6, H 240": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}, 240),
    "DiLoCo fp32, alpha 1, mu 0, H 240": ("diloco", {"alpha": 1.0, "mu": 0.0, "plain_first": True}, 240),
    "DiLoCo 4-bit, alpha 1, mu 0.8, H 31": ("diloco-4bit", {"alpha": 1.0, "mu": 0.8, "plain_first": True}, 31),
}
"""as many steps in rounds so long that they cost about as many bytes as pairwise's: as it is, and (the last three) with
one exchange a round"""
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
    "SparseLoCo k=128, H 15": ("sparseloco", EPIDEMIC, 15),
    "SPARTA, a share of 0.0075": ("sparta", {"p": 0.0075}, 20),
    "epidemic k=128, H 16": ("epidemic", EPIDEMIC, 16),
    "epidemic k=256, H 31": ("epidemic", WIDER, 31),
}
"""the same of other methods, to pairwise's bytes as it is"""
AT_EQUAL: Final[dict[str, tuple[str, ...]]] = {
    "pairwise": (*tuple(FEWER)[:3], *EQUALLED),
    "pairwise, one exchange a round": tuple(FEWER)[3:],
}

WARM: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
    "DiLoCo fp32": ("diloco", {"plain_first": True}),
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, alpha 1, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, as in its paper": ("diloco", {}),
}

WARMUP: Final = 200
"""steps, the daemon's default"""
OWN_WARM: Final[Ways] = {
    "pairwise, its own warm start": ("pairwise", {"warmup_steps": WARMUP}),
    "pairwise, its own, of one exchange a round": ("pairwise", {"warmup_steps": WARMUP, "warmup_exchanges": 1}),
    "pairwise, its own, then one exchange a round": ("pairwise", {"warmup_steps": WARMUP, "early": 0.0}),
    "pairwise, its own, one exchange a round in both": (
        "pairwise",
        {"warmup_steps": WARMUP, "warmup_exchanges": 1, "early": 0.0},
    ),
}
"""no synchronous steps: exchanges back to back, three in each round of five steps as in the daemon, or one"""
SHORT: Final = 50
SHORT_WARM: Final[Ways] = {
    f"pairwise, its own of {SHORT} steps, one exchange a round in both": (
        "pairwise",
        {"warmup_steps": SHORT, "warmup_exchanges": 1, "early": 0.0},
    ),
}
"""and as many rounds more as it is shorter"""
OTHERS_OWN: Final[Ways] = {
    "epidemic k=128, its own warm start": ("epidemic", {**EPIDEMIC, "warmup_steps": WARMUP}),
    "DiLoCo fp32, alpha 1, mu 0.8, its own warm start": (
        "diloco",
        {"alpha": 1.0, "mu": 0.8, "plain_first": True, "warmup_steps": WARMUP},
    ),
}

DRAWN: Final = (
    "pairwise",
    "pairwise, one exchange a round",
    "epidemic k=64",
    "epidemic k=128",
    "DDP",
    "DiLoCo fp32, alpha 1, mu 0.8",
    "DiLoCo 4-bit, alpha 1, mu 0.8",
    "local SGD",
    "GASLoC",
    "SwarmSGD",
    "CHOCO, local",
    "SPARTA",
    "DeMo",
    "local only",
)
"""not all, or nothing would be seen"""
COLD: Final = ("pairwise", "pairwise, one exchange a round", LEAN)
"""of which marks are asked from scratch"""
ASKED: Final = ("above DiLoCo fp32, nats", "DiLoCo's bytes over its own", "single replicas above their mean, nats")
BUDGETS: Final = (5.0, 10.0, 20.0, 30.0, 60.0, 240.0, 450.0)
"""bytes a parameter"""
COLD_GROUP: Final = "from scratch"
WARM_GROUP: Final = "after a warm start"
FEWER_GROUP: Final = "at as many bytes"
RATES_GROUP: Final = "learning rates"
FACTORS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""of the setting's rate: from half to twice that at which a method is played, and all between"""
RATED: Final[Ways] = {
    label: way
    for label, way in {**OURS, **FIELD, **EVERY_STEP, **NOLOCO}.items()
    if not label.startswith(("CHOCO, g", "pairwise, mu"))
}
"""but for CHOCO at other gammas, and pairwise at another mu"""


def _arms(scale: Scale) -> list[Arm]:
    cold = sized(MLP, scale)
    warm = replace(cold, warmup=WARMUP if scale != "quick" else 5)
    own: Ways = {**OWN_WARM, **OTHERS_OWN}
    more = replace(cold, rounds=cold.rounds + (WARMUP - SHORT) // cold.every)
    if scale == "quick":
        some: Ways = {**OURS, **FIELD, **dict(list(NOLOCO.items())[:2])}
        starts = {**own, **SHORT_WARM}
        short = {label: (method, started(options, scale)) for label, (method, options) in starts.items()}
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


def _rated(label: str, factor: float) -> str:
    return f"{label}, lr {factor * MLP.lr:g}"


def _at_rates(setting: Setting) -> list[Arm]:
    """Each method at every rate that is asked of it, its own included."""
    found = []
    for label, (method, options) in RATED.items():
        if method != "demo":  # whose rate is an option, see TUNED
            played = RATES.get(method, 1.0)
            for factor in (factor for factor in FACTORS if min(0.5 * played, 1.0) <= factor <= 2.0 * played):
                rated = replace(setting, lr=setting.lr * factor)
                found += arms(RATES_GROUP, rated, {_rated(label, factor): (method, options)})
    return found


def _rates(group: Mapping[str, Outcome]) -> Table:
    rows = []
    for label, (method, _) in RATED.items():
        found = [group.get(_rated(label, factor)) for factor in FACTORS]
        if any(found):
            own = f"{RATES.get(method, 1.0) * MLP.lr:g}"
            rows.append((label, *("" if one is None else told(one.losses) for one in found), own))
    columns = ("method", *(f"{factor * MLP.lr:g}" for factor in FACTORS), "played at")
    return Table("Learning rates: loss, from scratch", columns, rows)


def _read(results: Results) -> Findings:
    cold, warm = results.groups[COLD_GROUP], results.groups[WARM_GROUP]
    ours, diloco, noloco = cold["pairwise"], cold[_best_diloco(cold)], cold[_best_noloco(cold, cold["pairwise"])]
    judged = _against_diloco(cold) | _against_diloco_warm(warm, diloco.bytes)
    checks = [check for checks in judged.values() for check in checks]
    rated = results.groups.get(RATES_GROUP, {})
    nolocos = {label: outcome for label, outcome in (cold | rated).items() if label.startswith("NoLoCo")}
    for label in COLD:
        other = nolocos[_best_noloco(nolocos, cold[label])]
        name = f"{label} below the best NoLoCo of the grid ({other.arm.label}), nats"
        replicas = other.replica_loss - cold[label].replica_loss
        checks.append(check(name, "> 0", other.loss - cold[label].loss, replicas=replicas))
    shown = [label for label in cold if label not in NOLOCO]
    panels = {
        COLD_GROUP: {label: cold[label] for label in (*DRAWN, noloco.arm.label) if label in cold},
        WARM_GROUP: warm,
    }
    fewer = cold | results.groups[FEWER_GROUP]
    figures = [_at_equal_bytes(fewer[label], fewer[other]) for label, others in AT_EQUAL.items() for other in others]
    plain, paper = cold["DiLoCo fp32"], cold["DiLoCo fp32, as in its paper"]
    figures.append(
        reported("DiLoCo fp32, mu 0.9, with a plain first step below its paper's, nats", paper.loss - plain.loss)
    )
    equal = {label: fewer[label] for one, others in AT_EQUAL.items() for label in (one, *others)}
    blocks, escalated = ours.fact("blocks"), ours.fact("escalated")
    notes = [
        f"Of pairwise's blocks {100 * escalated / blocks:.1f} % were escalated, of its chunks "
        f"{100 * ours.fact('clipped') / ours.fact('chunks'):.2f} % clipped. Bytes are whole frames as encrypted, with "
        "their headers: with a model as small as this they are some 10 % more a parameter than with one of millions.",
        f"DDP, which exchanges in every step, is {diloco.loss - cold['DDP'].loss:.3f} nats better than DiLoCo and "
        f"{ours.loss - cold['DDP'].loss:.3f} better than pairwise, at {cold['DDP'].bytes / ours.bytes:.0f} times "
        "pairwise's bytes.",
        "Pairwise's first outer step is plain, for its peers have met nobody yet: alpha 1, no momentum. DiLoCo makes "
        "the same here, which is better for it; as in its paper, where momentum begins at once, it stands beside.",
        "Pairwise without an outer step is what pair averaging (SwarmSGD) is by the same codec: NoLoCo, SwarmSGD, "
        "GASLoC, D-PSGD and SGP send fp32 here, and at pairwise's bytes do so seldom.",
        "A rate belongs to a method: a momentum, a gamma or an H that is told beside the method's own may have a "
        "better one (the last table). What is told at as many bytes has the momentum and the rate of sixty rounds, but "
        "for DiLoCo's mu.",
    ]
    return Findings(
        [
            _together(judged),
            curves_table("From scratch", cold),
            curves_table("After a warm start", warm),
            curves_table("At as many bytes and as many samples", equal, "Each at the end of a run of its own."),
            bytes_table({label: cold[label] for label in (*shown, noloco.arm.label)}, BUDGETS),
            *([_rates(results.groups[RATES_GROUP])] if RATES_GROUP in results.groups else []),
        ],
        checks,
        [bytes_graph(panels), seconds_graph(panels, "Loss against steps (links take no time)"), distance_graph(panels)],
        notes,
        figures,
    )


def _best_diloco(group: Mapping[str, Outcome]) -> str:
    """At its best outer step, momentum and first step of those played with every seed."""
    return best(group, [label for label in group if label.startswith("DiLoCo fp32") and label not in TUNED])


def _best_noloco(group: Mapping[str, Outcome], ours: Outcome) -> str:
    """The nearest to `ours` of all settings, by the seeds that both have."""
    labels = [label for label in group if label.startswith("NoLoCo")]
    return best(group, labels, lambda outcome: outcome.loss - ours.loss)


def _at_equal_bytes(ours: Outcome, other: Outcome) -> Reported:
    """Bytes are about equal, for rounds are whole: they are told."""
    bytes_ = f"{ours.bytes:.1f} against {other.bytes:.1f} B a parameter"
    name = f"{ours.arm.label} below {other.arm.label} at about as many bytes ({bytes_}), nats"
    return reported(name, other.loss - ours.loss, replicas=other.replica_loss - ours.replica_loss)


def _against_diloco(cold: Mapping[str, Outcome]) -> dict[str, list[Check]]:
    """Loss, bytes and gap, by whose."""
    diloco, found = cold[_best_diloco(cold)], {}
    for label in COLD:
        ours = cold[label]
        replicas = ours.replica_loss - diloco.replica_loss
        found[label] = [
            check(f"{label}: loss above DiLoCo fp32's, nats", "<= 0.05", ours.loss - diloco.loss, replicas=replicas),
            check(f"{label}: DiLoCo's bytes over its own", ">= 12", diloco.bytes / ours.bytes, unit="x", digits=1),
            _gap(label, ours),
        ]
    return found


def _against_diloco_warm(warm: Mapping[str, Outcome], bytes_: float) -> dict[str, list[Check]]:
    """Synchronous steps cost DDP's bytes, whoever takes them: the bytes compared are those of rounds, and only starts
    of pairwise's own have such a mark."""
    diloco, found = warm[_best_diloco(warm)], {}
    for label in ("pairwise", *OWN_WARM, *SHORT_WARM):
        ours, said = warm[label], f"warm, {label}"
        replicas = ours.replica_loss - diloco.replica_loss
        name = f"{said}: loss above warm DiLoCo fp32's, nats"
        found[said] = [check(name, "<= 0.05", ours.loss - diloco.loss, replicas=replicas)]
        if label != "pairwise":
            name = f"{said}: bytes of DiLoCo's rounds over all of its own"
            found[said] += [check(name, ">= 9", bytes_ / ours.bytes, unit="x", digits=1), _gap(said, ours)]
    return found


def _gap(said: str, ours: Outcome) -> Check:
    return check(f"{said}: single replicas above their mean, nats", "<= 0.01", ours.gap, digits=4)


def _together(judged: Mapping[str, Sequence[Check]]) -> Table:
    """What B1 asks of one method, all of it."""
    rows = [
        (said, *(check.measured for check in checks), "yes" if all(check.passed for check in checks) else "no")
        for said, checks in judged.items()
        if len(checks) == len(ASKED)
    ]
    return Table("Loss, bytes and gap of one method", ("", *ASKED, "all met"), rows)


SUITE = Suite(
    name="b1",
    question="How good a model for how many bytes?",
    about="Byte-level MLP of 51,584 parameters on the standard library's sources, AdamW, N = 16, H = 20, 60 rounds, "
    "as in algorithms section 10. Links take no time here; B4, B9 and the suite clock are about time. Each method "
    "trains at the learning rate that was best for its best setting of those in the last table (the rings and the "
    "server, which are not in it, at that of their kin). Of epidemic's dissemination there is only a model here: "
    "everybody gets N - 1 payloads, each once.",
    arms=_arms,
    read=_read,
    tried=(
        (
            "single replicas above",
            "one exchange a round, starts of several lengths: here and in [warmstart](warmstart.md); bits, kappa, mu, "
            "early exchanges: [defaults](defaults.md)",
        ),
        (
            "bytes over its own",
            "one exchange a round, here; 3 to 8 bits, fragments and fewer early exchanges: [defaults](defaults.md)",
        ),
        (
            "over all of its own",
            "starts of one exchange in each short round, shorter ones, and one exchange a round after the start, "
            "here; starts of other lengths: [warmstart](warmstart.md)",
        ),
    ),
)
