"""B8: a transformer, N = 4 to 32, with and without a warm start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from simulations.lab.core import Setting
from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Graph, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Check, Figure, Reported, check, formatted, reported
from simulations.lab.suites.graphs import bytes_graph, distance_graph, end_line
from simulations.lab.suites.tables import best, curves_table

__all__ = ["SIZES", "SUITE", "TRANSFORMER"]

TRANSFORMER: Final = Setting(peers=8, every=30, rounds=32, lr=2e-3, evaluate_every=4)
"""the middle one of `FACTORS`; methods have rates of their own"""
SIZES: Final = (4, 8, 16, 32)
WARMUP: Final = 120
MANY: Final = 32
"""peers from which on a run has `FEWER` rounds"""
FEWER: Final = 16
SOME: Final = 8
"""most peers at which DDP, which has no mark, is played with every seed"""

OURS: Final = "pairwise"
WAYS: Final[Ways] = {OURS: ("pairwise", {})}
DDP: Final[Ways] = {"DDP": ("ddp", {})}
DILOCO: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}),
}
BETTER: Final = {True: "DiLoCo fp32, mu 0.8", False: "DiLoCo fp32, mu 0.6"}
"""after a warm start, and cold, with seed 0 at N = 4 and 16 rounds"""
STARTED: Final = f"{OURS}, its own warm start"
OWN: Final[Ways] = {STARTED: ("pairwise", {"warmup_steps": WARMUP})}
"""the daemon's warm start, without synchronous steps"""
OWN_SIZES: Final = (4, 8, 16)

FACTORS: Final = (0.5, 1.0, 2.0)
"""factors of the setting's learning rate, at N = 4. At four times, seed 0 was worse by 0.3 nats"""
RATES: Final[Mapping[str, float]] = {}
"""by method, the best of `FACTORS` by the mean of three seeds. It is 1 for all of them"""
BY_RATE: Final = "N = 4, by learning rate"
TRIED: Final[Ways] = {**WAYS, **DDP, **DILOCO}
OTHERWISE: Final[Ways] = {
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
    "pairwise, early exchanges in all rounds": ("pairwise", {"early": 1.0}),
    "pairwise, kappa 0": ("pairwise", {"kappa": 0.0}),
    "pairwise, mu 0.8": ("pairwise", {"momentum": 0.8}),
    "DiLoCo fp32, mu 0.6, alpha 0.7": ("diloco", {"alpha": 0.7, "mu": 0.6, "plain_first": True}),
    "DiLoCo fp32, mu 0.8, alpha 0.7": ("diloco", {"alpha": 0.7, "mu": 0.8, "plain_first": True}),
}
SETTINGS: Final = "settings"


def _group(peers: int, *, warm: bool) -> str:
    return f"N = {peers}, {'warm' if warm else 'cold'}"


def _settings(group: str) -> str:
    return f"{SETTINGS}, {group}"


def _arms(scale: Scale) -> list[Arm]:
    full, quick = scale == "full", scale == "quick"
    base = at_scale(TRANSFORMER, scale)
    warmup = WARMUP if not quick else 5
    found: list[Arm] = []

    def add(group: str, setting: Setting, ways: Ways, seeds: int | None = None) -> None:
        several = None if full else seeds
        found.extend(arms(group, setting, ways, problem="byte-transformer", seeds=several, rates=RATES))

    for peers, warm in product(SIZES if not quick else SIZES[:1], (True, False)):
        group = _group(peers, warm=warm)
        cold = replace(base, peers=peers)
        if peers >= MANY and not full:
            cold = replace(cold, rounds=min(base.rounds, FEWER))
        setting = replace(cold, warmup=warmup if warm else 0)
        add(group, setting, WAYS)
        add(group, setting, DDP, None if peers <= SOME else 1)
        add(group, setting, {BETTER[warm]: DILOCO[BETTER[warm]]})
        if full or peers < MANY:
            add(group, setting, {BETTER[not warm]: DILOCO[BETTER[not warm]]})
        if warm and peers in OWN_SIZES:
            own = {label: (method, {**options, "warmup_steps": warmup}) for label, (method, options) in OWN.items()}
            add(group, cold, own)
        if peers == 8 or quick:
            add(_settings(group), setting, OTHERWISE, 1)
    own = {label: (method, {**options, "warmup_steps": warmup}) for label, (method, options) in OWN.items()}
    for factor, (label, way) in product(FACTORS, {**TRIED, **own}.items()):
        rated = replace(base, peers=SIZES[0], lr=factor * base.lr)
        found += arms(BY_RATE, rated, {_rated(label, factor): way}, problem="byte-transformer")
    return found


def _rated(label: str, factor: float) -> str:
    return f"{label}, lr {factor * TRANSFORMER.lr:g}"


def _read(results: Results) -> Findings:
    checks: list[Check] = []
    figures: list[Reported] = []
    settings = {group: outcomes for group, outcomes in results.groups.items() if group.startswith(SETTINGS)}
    groups = {group: those for group, those in results.groups.items() if group not in {BY_RATE, *settings}}
    for group, outcomes in groups.items():
        found, others = _judged(group, outcomes)
        checks += found
        figures += others
    panels = {group: outcomes for group, outcomes in groups.items() if group.endswith("warm")}
    tables = [curves_table(group, outcomes) for group, outcomes in groups.items()]
    if settings:
        tables.append(_otherwise(groups, settings))
    tables.append(_rates(results.groups[BY_RATE]))
    graphs = [bytes_graph(panels), distance_graph(panels)]
    drawn = [_peers(groups), *graphs] if len(panels) > 1 else graphs
    return Findings(tables, checks, drawn, (), figures)


def _rates(group: Mapping[str, Outcome]) -> Table:
    rows = []
    for label, (method, _) in {**TRIED, **OWN}.items():
        losses = (formatted(group[_rated(label, factor)].losses) for factor in FACTORS)
        rows.append((label, *losses, f"{RATES.get(method, 1.0) * TRANSFORMER.lr:g}"))
    columns = ("method", *(f"{factor * TRANSFORMER.lr:g}" for factor in FACTORS), "played at")
    return Table("Learning rates, N = 4: loss, cold or with a start of its own", columns, rows)


def _judged(group: str, outcomes: Mapping[str, Outcome]) -> tuple[list[Check], list[Reported]]:
    """Marks of pairwise, from the given start and from its own."""
    checks, figures = [], []
    diloco = [label for label in outcomes if label.startswith("DiLoCo")]
    for ours in (label for label in (OURS, STARTED) if label in outcomes):
        other, above, replicas = _above(outcomes, ours, diloco)
        checks.append(check(f"{group}: {ours} above {other}, nats", "<= 0.05", above, replicas=replicas))
        _, above, replicas = _above(outcomes, ours, ("DDP",))
        figures.append(reported(f"{group}: {ours} above DDP at equal samples, nats", above, replicas=replicas))
    return checks, figures


def _above(outcomes: Mapping[str, Outcome], label: str, others: Sequence[str]) -> tuple[str, Figure, Figure]:
    """The best rival by the seeds that both have, the distance above it, and that of single replicas."""
    ours = outcomes[label]
    other = best(outcomes, others, lambda outcome: outcome.loss - ours.loss)
    return other, ours.loss - outcomes[other].loss, ours.replica_loss - outcomes[other].replica_loss


def _otherwise(groups: Mapping[str, Mapping[str, Outcome]], settings: Mapping[str, Mapping[str, Outcome]]) -> Table:
    rows = []
    for group, outcomes in settings.items():
        usual = groups[group.removeprefix(f"{SETTINGS}, ")]
        for label, outcome in outcomes.items():
            plain = usual[label.rpartition(",")[0]]
            rows.append((group, label, formatted(outcome.losses), formatted(outcome.loss - plain.loss)))
    return Table("Other settings", ("", "method", "loss", "above the same without it"), rows)


def _peers(groups: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    """The sizes with as many rounds as the smallest."""
    panels = {}
    for warm in (True, False):
        at = {peers: groups[_group(peers, warm=warm)] for peers in SIZES}
        rounds = {peers: outcomes[OURS].setting.rounds for peers, outcomes in at.items()}
        equal = [peers for peers in SIZES if rounds[peers] == rounds[SIZES[0]]]
        panels["warm" if warm else "cold"] = {
            label: end_line({float(peers): at[peers][label] for peers in equal}, lambda point: point.loss)
            for label in (*WAYS, *DDP, BETTER[warm])
        }
    return Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", panels, log_x=True)


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, 32 rounds as designed, N = 4 to 32, "
    f"after a warm start of {WARMUP} synchronous steps and cold. Up to N = {OWN_SIZES[-1]} there is also the "
    "daemon's warm start, of as many steps. DiLoCo has alpha 1, which B1 found better than 0.7. At N = "
    f"{MANY} there are {FEWER} rounds, and DiLoCo has one mu (32, and both with --full). Above N = {SOME} DDP "
    "and other settings have one seed. Differences use the seeds that both have. Each method trains at its "
    "best learning rate at N = 4, from the last table.",
    arms=_arms,
    read=_read,
    tried="alpha 0.7 of DiLoCo, early exchanges in none and in all rounds, kappa 0 and mu 0.8 of pairwise, learning "
    "rates: here; other sizes and settings, on another model: [b2](b2.md), [defaults](defaults.md)",
)
