"""B4: peers of unequal speed on slow links."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from simulations.lab.core import Curve, Point
from simulations.lab.problems import ByteMlp
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import Run, link
from simulations.lab.suites.arms import arms, at_scale, with_short_start
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, check, formatted, mean, reported
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.model import MLP, WARMUP, diloco
from simulations.lab.suites.momenta import Clocked, at_momenta, momenta_table
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import curves_table

__all__ = [
    "ALIKE",
    "LARGE",
    "MEGABITS",
    "MILLISECONDS",
    "MODELS",
    "OURS_ALIKE",
    "PEERS",
    "RATED",
    "SMALL",
    "SPEEDS",
    "START",
    "SUITE",
    "unequal",
]

PEERS: Final = 8
SPEEDS: Final = (1.0, 2.0, 4.0)
MEGABITS, MILLISECONDS = 100.0, 40.0
SMALL, LARGE = "10 million parameters", "100 million parameters"
MODELS: Final = {SMALL: 1e7, LARGE: 1e8}
OURS: Final = "pairwise"
START: Final = "its own warm start"
OWN: Final = f"{OURS}, {START}"
PACED: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    OURS: ("pairwise", {}, 20),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}, 20),
    OWN: ("pairwise", {"warmup_steps": WARMUP}, 20),
    "pairwise, no clipping": ("pairwise", {"clip": math.inf}, 20),
    "DiLoCo fp32, own pace, H 20": ("diloco", {"own_pace": True}, 20),
    "DiLoCo fp32, own pace, H 80": ("diloco", {"own_pace": True}, 80),
    "DiLoCo 4-bit, own pace, H 20": ("diloco-4bit", {"own_pace": True}, 20),
    "DiLoCo 4-bit, own pace, H 80": ("diloco-4bit", {"own_pace": True}, 80),
    "DiLoCo 4-bit, overlapped, own pace, H 20": ("diloco-4bit-overlapped", {"own_pace": True}, 20),
    f"DiLoCo 4-bit, own pace, H 20, {START}": ("diloco-4bit", {"own_pace": True, "warmup_steps": WARMUP}, 20),
    f"DiLoCo 4-bit, overlapped, own pace, H 20, {START}": (
        "diloco-4bit-overlapped",
        {"own_pace": True, "warmup_steps": WARMUP},
        20,
    ),
}
"""fast hosts make more steps; method, options and H"""
ALIKE: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "DiLoCo fp32, H 20": ("diloco", {}, 20),
    "DiLoCo fp32, H 80": ("diloco", {}, 80),
    "DiLoCo fp32, H 320": ("diloco", {}, 320),
    "DiLoCo 4-bit, H 20": ("diloco-4bit", {}, 20),
    "DiLoCo 4-bit, H 80": ("diloco-4bit", {}, 80),
    "DiLoCo 4-bit, overlapped, H 20": ("diloco-4bit-overlapped", {}, 20),
}
"""all hosts make as many steps as the slowest"""
OURS_ALIKE: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "pairwise, all as many steps": ("pairwise", {"own_pace": False}, 20),
}
"""measures how much of pairwise's lead comes from its pace"""
MOMENTA: Final = (
    OURS,
    "pairwise, one exchange a round",
    "DiLoCo fp32, own pace, H 20",
    "DiLoCo fp32, own pace, H 80",
    "DiLoCo 4-bit, own pace, H 20",
    "DiLoCo 4-bit, overlapped, own pace, H 20",
    "DiLoCo fp32, H 80",
    "DiLoCo 4-bit, H 20",
    "DiLoCo 4-bit, overlapped, H 20",
)
"""with varied outer momentum and learning rate"""
VARIED: Final = ", by outer momentum"
BY_RATE: Final = ", by learning rate"
FACTORS: Final = (0.5, 1.0, 2.0)
"""factors of a method's learning rate"""
WAYS: Final = PACED | OURS_ALIKE | ALIKE
RATED: Final = 1200.0
"""seconds of the runs with varied outer momentum or learning rate"""
LENGTHS: Final = {SMALL: (600.0, 1200.0, 1800.0), LARGE: (600.0, 1200.0, 2400.0)}
"""seconds of the runs; in each the learning rate falls over just that run"""
CALM, TARGET = "calm", "DiLoCo fp32"
ABOVE: Final = 0.02
"""nats by which the target lies above DiLoCo's final loss, from the same seed, with equal hosts and instant links"""
MARKS: Final = {"DiLoCo fp32": 2.0, "DiLoCo 4-bit": 1.2}
Loss: TypeAlias = Callable[[Point], float]


def _model(point: Point) -> float:
    return point.loss


def _replicas(point: Point) -> float:
    return point.replica_loss


def _arms(scale: Scale) -> list[Arm]:
    calm = at_scale(replace(MLP, peers=PEERS), scale)
    found = arms(CALM, calm, {TARGET: ("diloco", diloco(calm.rounds, PEERS))})
    varied = at_momenta({label: WAYS[label] for label in MOMENTA})
    for name in MODELS:
        for length in LENGTHS[name]:
            found += unequal(name, name, WAYS, length, scale)
        found += unequal(f"{name}{VARIED}", name, varied, RATED, scale)
    for factor in FACTORS:
        ways = {_rated(label, factor): WAYS[label] for label in MOMENTA}
        found += unequal(f"{SMALL}{BY_RATE}", SMALL, ways, RATED, scale, factor=factor)
    return found


def unequal(group: str, model: str, ways: Clocked, length: float, scale: Scale, *, factor: float = 1.0) -> list[Arm]:
    """Every variant for `seconds` simulated seconds, with a model of `MODELS`. Labels end with the seconds.

    Args:
        factor: of each variant's learning rate.
    """
    found = []
    parameters = ByteMlp().parameters
    there = link(MEGABITS, MILLISECONDS, parameters, MODELS[model])
    base = replace(at_scale(replace(MLP, peers=PEERS, lr=factor * MLP.lr), scale), speeds=SPEEDS, link=there)
    seconds = length if scale != "quick" else length / 30.0
    for label, (method, given, every) in ways.items():
        options = with_short_start(given, scale)
        setting = setting_in_time(
            seconds, Run(setting=replace(base, every=every), method=method, options=options), parameters
        )
        setting = replace(setting, evaluate_every=max(1, setting.rounds // 20))
        more = diloco(setting.rounds, PEERS) | options if method.startswith("diloco") else options
        found += arms(group, setting, {_label(label, length): (method, more)}, rates=RATES)
    return found


def _label(way: str, length: float) -> str:
    return f"{way}, {length:.0f} s"


def _rated(way: str, factor: float) -> str:
    return f"{way}, {factor:g} times"


def _time(curves: Sequence[Curve], target: float, of: Loss) -> float:
    """Seconds of one seed to the target; infinite if no run reached it.

    It interpolates between the ends of runs, shortest first. A run that reached the target on its way counts if that
    was earlier.
    """
    before: Curve | None = None
    for curve in curves:
        if of(curve.last) <= target:
            if before is None:
                return curve.when(target, of)
            share = (of(before.last) - target) / (of(before.last) - of(curve.last))
            between = before.last.seconds + share * (curve.last.seconds - before.last.seconds)
            return min(between, curve.when(target, of))
        before = curve
    return math.inf


def _times(outcomes: Mapping[str, Outcome], labels: Sequence[str], targets: Sequence[float], of: Loss) -> list[float]:
    """Seconds to the target of each seed; NaN if a run of any length failed."""
    runs = zip(*(outcomes[label].answers for label in labels), strict=True)
    tasks = [outcomes[label].arm.task for label in labels]
    found = []
    for answers, target in zip(runs, targets, strict=False):
        if any(answer.error for answer in answers):
            found.append(math.nan)
            continue
        curves = [
            task.curve(answer.result) for task, answer in zip(tasks, answers, strict=True) if isinstance(task, Run)
        ]
        found.append(_time(curves, target, of))
    return found


def _needed(times: Sequence[float], given: float) -> Figure:
    """The given time of seeds that never reached the target, a lower bound."""
    return mean([given if time > given else time for time in times])


def _read(results: Results) -> Findings:
    targets = [loss + ABOVE for loss in results[CALM, TARGET].last(lambda point: point.loss)]
    aim = f"{formatted(targets, 3)} nats"
    checks, tables, figures = [], [], []
    for name in MODELS:
        outcomes, given = results.groups[name], LENGTHS[name][-1]
        labels = {way: [_label(way, length) for length in LENGTHS[name]] for way in WAYS}
        times, replicas = (
            {way: _times(outcomes, those, targets, of) for way, those in labels.items()} for of in (_model, _replicas)
        )
        rows = [
            (
                way,
                formatted(values, 0),
                formatted(replicas[way], 0),
                _rounds(outcomes, labels[way]),
                _clipped(outcomes, labels[way]),
            )
            for way, values in times.items()
        ]
        columns = (
            *("method", "seconds", "until single replicas are there", "played: rounds of H steps"),
            "chunks clipped, in the longest",
        )
        tables += [Table(f"{name}: simulated seconds to {aim}", columns, rows)]
        tables += [curves_table(name, outcomes)]
        varied = {label.rpartition(", ")[0]: one for label, one in results.groups[f"{name}{VARIED}"].items()}
        tables.append(momenta_table(f"{name}{VARIED}, {RATED:.0f} s", varied, MOMENTA))
        needed = {way: _needed(those, given) for way, those in times.items()}
        single = {way: _needed(those, given) for way, those in replicas.items()}
        for kind, least in MARKS.items():
            for said, ways in (("all as many steps", ALIKE), ("each at its own pace", PACED)):
                waiting = [way for way in ways if way.startswith(kind) and "overlapped" not in way and START not in way]
                quickest, first = (_soonest({way: those[way] for way in waiting}) for those in (needed, single))
                what = f"{name}: the best {kind}'s seconds, {said} ({quickest}), by pairwise's"
                measured, replicated = needed[quickest] / mean(times[OURS]), single[first] / single[OURS]
                checks.append(check(what, f">= {least:.1f}", measured, unit="x", digits=2, replicas=replicated))
        figures += [
            reported(
                f"{name}: {way}, its seconds by {whose}'s", needed[way] / mean(times[whose]), "x", 2,
                replicas=single[way] / single[whose],
            )
            for way in times if "overlapped" in way or "pace" in way or way.startswith(f"{OURS}, ")
            for whose in [OWN if way.startswith("DiLoCo") and START in way else OURS]
        ]  # fmt: skip
    tables.append(_rates(results.groups[f"{SMALL}{BY_RATE}"]))
    longest = {name: {way: results[name, _label(way, LENGTHS[name][-1])] for way in WAYS} for name in MODELS}
    return Findings(tables, checks, [seconds_graph(longest)], NOTES, figures)


def _soonest(needed: Mapping[str, Figure]) -> str:
    return min(needed, key=lambda way: (math.isnan(needed[way]), needed[way]))


def _rates(outcomes: Mapping[str, Outcome]) -> Table:
    rows = []
    for way in MOMENTA:
        found = [outcomes[_label(_rated(way, factor), RATED)] for factor in FACTORS]
        own = found[FACTORS.index(1.0)].setting.lr
        rows.append((way, f"{own:g}", *(formatted(outcome.losses) for outcome in found)))
    title = f"{SMALL}{BY_RATE}: loss after {RATED:.0f} s"
    return Table(title, ("method", "its learning rate", *(f"{factor:g} times it" for factor in FACTORS)), rows)


def _rounds(outcomes: Mapping[str, Outcome], labels: Sequence[str]) -> str:
    settings = [outcomes[label].setting for label in labels]
    return "; ".join(f"{setting.rounds} of {setting.every}" for setting in settings)


def _clipped(outcomes: Mapping[str, Outcome], labels: Sequence[str]) -> str:
    """Only of exchanges in pairs."""
    longest = outcomes[labels[-1]]
    chunks = longest.fact("chunks")
    return "" if math.isnan(chunks) else f"{100 * longest.fact('clipped') / chunks:.0f} %"


NOTES: Final = (
    "The rival of pairwise is overlapped DiLoCo at its own pace. Its peers wait for no link and no slower host, "
    "while all take part in every round. With unequal hosts much of pairwise's lead over DiLoCo with equal steps "
    "comes from more steps. Pairwise with equal steps is shown too.",
    "A rival that never reached the target counts in the ratios with the time it was given, the same for all. A "
    "pairwise that never did counts with 0. For single replicas both count with the time they were given, so 1.00x "
    "may mean that neither reached it.",
    "The loss is that of the mean of the replicas. No peer holds it, and no clock counts its averaging. The times "
    "of single replicas are shown too.",
)

SUITE = Suite(
    name="b4",
    question="What if hosts are unequal and links are slow?",
    about=f"The model of B1, N = {PEERS}, steps of 1 s on the slowest hosts; other hosts are two and four times as "
    "fast. Links of 100 Mbit/s and 80 ms round trip carry as many bytes as a model of 10 or 100 million "
    f"parameters would send. The figure is the time to a loss {ABOVE} nats above DiLoCo's final loss from the "
    "same seed, after 60 rounds of 20 with equal hosts and instant links. One of the seeds is harder than the "
    "others for all methods. DiLoCo is shown with equal steps on all hosts, and at its own pace, where fast "
    "hosts make more. Every method is played for the same three lengths of time. Its learning rate falls over "
    "each of them, from the end of a warm start on. DiLoCo is played with several H. A label names the H "
    f"asked for. mu is 0.6; other values after 1,200 s are shown too. A warm start is a method's own: {WARMUP} "
    "steps in short rounds, or rounds as long as an exchange, with alpha 1 and mu 0. It has no mark: such "
    "methods are compared with pairwise that starts the same way. Each method has its own learning rate "
    "(B1). Other rates are shown too. SwarmSGD and GASLoC are in the suite clock.",
    arms=_arms,
    read=_read,
    tried="of pairwise one exchange a round, no clipping, a warm start, and all as many steps: here; alpha and mu: "
    "here and in [outer](outer.md); H 5 and 50, and other links: [clock](clock.md); bits, fragments, kappa and early "
    "exchanges, where hosts are equal: [defaults](defaults.md)",
)
