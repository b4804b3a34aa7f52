"""B9: the clock of a billion parameters on 100 Mbit/s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simulations.lab.core import Curve
from simulations.lab.problems import ByteMlp, ByteTransformer
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import Run, link
from simulations.lab.suites.arms import arms, with_short_start
from simulations.lab.suites.b4 import START
from simulations.lab.suites.b8 import TRANSFORMER
from simulations.lab.suites.base import Arm, Findings, Results, Scale, Suite, Table
from simulations.lab.suites.figures import check, formatted, mean, reported
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.model import MLP, WARMUP, diloco
from simulations.lab.suites.momenta import Clocked, at_momenta, best_momentum, momenta_table
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import LOSSES, best, curves_table, in_time, loss_cells

__all__ = ["LONG", "SUITE", "TRANSFORMING", "late"]

PARAMETERS: Final = 1e9
SECONDS: Final = 1200.0
TRANSFORMING: Final = "transformer"
LONG: Final = "MLP, five times as long"
LONGER: Final = 5.0
ESCALATES: Final = 0.95
"""share of the time that rounds fill for a method that waits for each exchange; the clock that chooses the rounds knows
no escalated blocks
"""
VARIED: Final = ", by outer momentum"
OWN: Final = f"pairwise, {START}"
AT_ONCE: Final = "pairwise, at once (no link is so fast)"
OTHERS: Final = f"DiLoCo 4-bit, overlapped, H 80, {START}"
WAYS: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "pairwise": ("pairwise", {}, 50),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}, 50),
    OWN: ("pairwise", {"warmup_steps": WARMUP}, 50),
    "pairwise, waiting": ("pairwise", {"early": 0.0, "exchanges": 1, "landing": "waiting"}, 50),
    AT_ONCE: ("pairwise", {"early": 0.0, "exchanges": 1, "landing": "at once"}, 50),
    "DiLoCo fp32": ("diloco", {}, 50),
    "DiLoCo fp32, H 200": ("diloco", {}, 200),
    "DiLoCo fp32, H 500": ("diloco", {}, 500),
    "DiLoCo 4-bit": ("diloco-4bit", {}, 50),
    "DiLoCo 4-bit, H 100": ("diloco-4bit", {}, 100),
    "DiLoCo 4-bit, overlapped, H 80": ("diloco-4bit-overlapped", {}, 80),
    "DiLoCo fp32, overlapped, H 600": ("diloco-overlapped", {}, 600),
    OTHERS: ("diloco-4bit-overlapped", {"warmup_steps": WARMUP}, 80),
}
COLD: Final = ("pairwise", "pairwise, one exchange a round")
SAME: Final = ("DiLoCo fp32, H 500",)
"""without "DiLoCo fp32, H 200", the same single round in the transformer's time"""
MOMENTA: Final = {
    LONG: (
        "pairwise",
        "pairwise, one exchange a round",
        OWN,
        "pairwise, waiting",
        AT_ONCE,
        "DiLoCo fp32, H 200",
        "DiLoCo 4-bit",
        "DiLoCo 4-bit, overlapped, H 80",
        "DiLoCo fp32, overlapped, H 600",
        OTHERS,
    ),
    TRANSFORMING: (
        "pairwise",
        "pairwise, one exchange a round",
        OWN,
        "DiLoCo 4-bit",
        "DiLoCo 4-bit, overlapped, H 80",
        OTHERS,
    ),
}
"""with varied outer momentum"""
PUBLISHED: Final = (
    ("Covenant-72B", "94.5 % utilisation, 146x compression", "arXiv 2603.08163"),
    ("INTELLECT-1", "83 to 96 % utilisation, 400x less traffic", "arXiv 2412.01152"),
    ("OpenDiLoCo", "90 to 95 % utilisation", "arXiv 2407.07852"),
    ("NoLoCo", "about 10x faster synchronisation than DiLoCo at some 1,000 replicas", "arXiv 2506.10911"),
    ("Moshpit SGD", "1.3x over SGP", "arXiv 2103.03239"),
    ("Decoupled DiLoCo", "88 % goodput against 27 %", "arXiv 2604.21428"),
)


def _arms(scale: Scale) -> list[Arm]:
    found = []
    for model, labels in MOMENTA.items():
        # the other model shows the cost of landing late more cheaply
        but = SAME if model == TRANSFORMING else ()
        ways = {label: way for label, way in WAYS.items() if label not in but}
        if model == TRANSFORMING:
            ways = {label: way for label, way in ways.items() if "landing" not in way[1]}
        found += late(model, model, ways, scale)
        found += late(f"{model}{VARIED}", model, at_momenta({label: WAYS[label] for label in labels}), scale)
    return found


def late(group: str, model: str, ways: Clocked, scale: Scale) -> list[Arm]:
    """Every variant for the seconds that this model has in `MOMENTA`."""
    transforms = model == TRANSFORMING
    parameters = ByteTransformer().parameters if transforms else ByteMlp().parameters
    base = replace(TRANSFORMER, rounds=1) if transforms else replace(MLP, peers=TRANSFORMER.peers)
    seconds = (SECONDS if scale != "quick" else 200.0) * (1.0 if transforms else LONGER)
    fewer = 10 if scale == "quick" else 1
    base = replace(base, step_seconds=float(fewer), link=link(100.0, 40.0, parameters, PARAMETERS), evaluate_every=1)
    problem = "byte-transformer" if transforms else "byte-mlp"
    found: list[Arm] = []
    for label, (method, given, every) in ways.items():
        options = with_short_start(given, scale)
        run = Run(setting=replace(base, every=every // fewer), problem=problem, method=method, options=options)
        setting = setting_in_time(
            seconds * (ESCALATES if options.get("landing") == "waiting" else 1.0), run, parameters
        )
        setting = replace(setting, evaluate_every=max(1, setting.rounds // 12))
        more = diloco(setting.rounds, setting.peers) | options if method.startswith("diloco") else options
        found += arms(group, setting, {label: (method, more)}, problem=problem, rates={} if transforms else RATES)
    return found


def utilisation(curve: Curve) -> float:
    """Share of its time in which a peer computes."""
    return curve.last.steps * curve.setting.step_seconds / curve.last.seconds


def _read(results: Results) -> Findings:
    checks, figures, tables = [], [], []
    groups = {group: outcomes for group, outcomes in results.groups.items() if not group.endswith(VARIED)}
    for group, outcomes in groups.items():
        ours = mean(outcomes["pairwise"].each(utilisation))
        checks.append(check(f"{group}: utilisation of pairwise, %", ">= 97", 100 * ours, digits=1))
        cold = best(outcomes, COLD)
        for other in (label for label in in_time(outcomes, "pairwise") if label.startswith("DiLoCo")):
            setting = outcomes[other].setting
            same_start = {"both from their own start": OWN} if START in other else {"both cold": cold}
            mu, rival = best_momentum(other, outcomes[other], results.groups[f"{group}{VARIED}"])
            for how, label in (same_start | ({} if START in other else {"own start against cold": OWN})).items():
                ahead = rival.loss - outcomes[label].loss
                replicas = rival.replica_loss - outcomes[label].replica_loss
                played = f"{setting.rounds} of {setting.every} steps{mu}"
                name = f"{group}, {how}: {label} below {other} ({played}) at equal time, nats"
                figures.append(reported(name, ahead, replicas=replicas))
        rows = [
            (
                label,
                formatted([100 * value for value in outcome.each(utilisation)], 1),
                *loss_cells(outcome),
                f"{formatted(outcome.last(lambda point: float(point.round)), 0)} of {outcome.setting.every}",
                formatted(outcome.last(lambda point: point.seconds), 0),
                _landing(outcome.fact("landing"), outcome.fact("exchanges")),
            )
            for label, outcome in outcomes.items()
        ]
        columns = ("method", "utilisation, %", *LOSSES, "rounds of H steps", "simulated s", "lands at, of a round")
        tables += [Table(group, columns, rows), curves_table(f"{group}: curves", outcomes)]
        tables.append(momenta_table(f"{group}{VARIED}", results.groups[f"{group}{VARIED}"], MOMENTA[group]))
    published = Table("Published, for comparison", ("run", "what it reached", "paper"), PUBLISHED)
    graphs = [seconds_graph(groups, "Loss against simulated wall clock, 1e9 parameters on 100 Mbit/s")]
    return Findings([*tables, published], checks, graphs, NOTES, figures)


NOTES: Final = (
    "That pairwise computes all the time is true by construction: it waits for nothing, so its clock has no waiting in "
    "it. What that is worth is in the losses, which know when each exchange landed.",
    "The rival of pairwise is overlapped DiLoCo. It does not wait either, if its all-reduce fits into a round (some "
    "70 s at 4 bits, 560 s at fp32).",
    "The loss is that of the mean of the replicas. No peer holds it, and no clock counts its averaging. The loss of "
    "single replicas is shown too.",
)


def _landing(total: float, count: float) -> str:
    return f"{total / count:.2f}" if count > 0.0 else "-"


SUITE = Suite(
    name="b9",
    question="A billion parameters on 100 Mbit/s: who waits, and what does landing late cost?",
    about="The transformer of B8 for 1,200 simulated seconds and the MLP of B1 for 6,000, N = 8, from scratch, "
    "steps of 1 s. Links of 100 Mbit/s and 40 ms carry as many bytes as a billion parameters would send. Each "
    "method plays whole rounds that fill the time to 2 %, with the H nearest to 50, or to the one in its "
    "name. If not even that fits, it plays one round (see its seconds). DiLoCo's mu is 0.6; other values are "
    f"shown, and figures of DiLoCo are of the best of them. A warm start is a method's own: {WARMUP} steps in "
    "rounds as long as an exchange, with alpha 1 and mu 0. Other methods begin cold, and pairwise is compared "
    "with them from both. Rounds and steps per round are shown. They differ from the H in a name that does "
    "not fill the time. Learning rates of the MLP are each method's own (B1); the transformer has one for all "
    "(B8).",
    arms=_arms,
    read=_read,
    tried=(("utilisation", "waiting for the exchanges of a round, and one exchange a round: here"),),
)
