"""B1: one language model, N = 16, every method of the laboratory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simulations.lab.suites.b1_arms import (
    AT_EQUAL,
    COLD_GROUP,
    FACTORS,
    FEWER_GROUP,
    LEAN,
    NOLOCO,
    OWN_WARM,
    RATED,
    RATES_GROUP,
    SHORT_WARM,
    TUNED,
    WARM_GROUP,
    b1_arms,
    rated,
)
from simulations.lab.suites.base import Findings, Outcome, Results, Suite, Table
from simulations.lab.suites.figures import Check, Reported, check, formatted, reported
from simulations.lab.suites.graphs import bytes_graph, distance_graph, seconds_graph
from simulations.lab.suites.model import MLP
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import best, bytes_table, curves_table

__all__ = ["SUITE"]

DRAWN: Final = (
    "pairwise",
    "pairwise, one exchange a round",
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
"""not all methods, so that single lines can be seen"""
COLD: Final = ("pairwise", "pairwise, one exchange a round", LEAN)
"""variants with marks from scratch"""
ASKED: Final = ("above DiLoCo fp32, nats", "DiLoCo's bytes over its own", "single replicas above their mean, nats")
BUDGETS: Final = (5.0, 10.0, 20.0, 30.0, 60.0, 240.0, 450.0)
"""bytes per parameter"""


def _rates(group: Mapping[str, Outcome]) -> Table:
    rows = []
    for label, (method, _) in RATED.items():
        found = [group.get(rated(label, factor)) for factor in FACTORS]
        if any(found):
            own = f"{RATES.get(method, 1.0) * MLP.lr:g}"
            rows.append((label, *("" if one is None else formatted(one.losses) for one in found), own))
    columns = ("method", *(f"{factor * MLP.lr:g}" for factor in FACTORS), "played at")
    return Table("Learning rates: loss, from scratch", columns, rows)


def _read(results: Results) -> Findings:
    cold, warm = results.groups[COLD_GROUP], results.groups[WARM_GROUP]
    ours, diloco, noloco = cold["pairwise"], cold[_best_diloco(cold)], cold[_best_noloco(cold, cold["pairwise"])]
    judged = _against_diloco(cold) | _against_diloco_warm(warm, diloco.bytes)
    checks = [check for checks in judged.values() for check in checks]
    at_rates = results.groups.get(RATES_GROUP, {})
    nolocos = {label: outcome for label, outcome in (cold | at_rates).items() if label.startswith("NoLoCo")}
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
        "Pairwise's first outer step is plain, because its peers have had no exchange yet: alpha 1, no momentum. "
        "DiLoCo makes the same step here, which is better for it. The form of its paper, with momentum from the "
        "first step, is shown too.",
        "Pairwise without an outer step is pair averaging (SwarmSGD) by the same codec. NoLoCo, SwarmSGD, GASLoC, "
        "D-PSGD and SGP send fp32 here, so at pairwise's bytes they exchange seldom.",
        "A rate belongs to a method. Another momentum, gamma or H may have a better rate (the last table). Runs at "
        "equal bytes have the momentum and the rate of sixty rounds, except DiLoCo's mu.",
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
    """The best outer step, momentum and first step of those played with every seed."""
    return best(group, [label for label in group if label.startswith("DiLoCo fp32") and label not in TUNED])


def _best_noloco(group: Mapping[str, Outcome], ours: Outcome) -> str:
    """The NoLoCo setting that is nearest to `ours`, by the seeds that both have."""
    labels = [label for label in group if label.startswith("NoLoCo")]
    return best(group, labels, lambda outcome: outcome.loss - ours.loss)


def _at_equal_bytes(ours: Outcome, other: Outcome) -> Reported:
    """Reported, not a mark. Bytes are only about equal, because rounds are whole, so the name states them."""
    bytes_ = f"{ours.bytes:.1f} against {other.bytes:.1f} B a parameter"
    name = f"{ours.arm.label} below {other.arm.label} at about as many bytes ({bytes_}), nats"
    return reported(name, other.loss - ours.loss, replicas=other.replica_loss - ours.replica_loss)


def _against_diloco(cold: Mapping[str, Outcome]) -> dict[str, list[Check]]:
    """Checks of loss, bytes and gap, by variant."""
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
    """The same after a warm start.

    Synchronous steps cost DDP's bytes in every method, so only the bytes of rounds are compared. Only warm starts of
    pairwise's own have a mark on bytes.
    """
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
    """All that B1 asks of one variant."""
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
    "as in algorithms section 10. Links take no time here. B4, B9 and the suite clock measure time. Each "
    "method trains at the best learning rate of its best setting in the last table. The rings and the server "
    "are not in it and use the rate of related methods.",
    arms=b1_arms,
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
