"""B8: a transformer, N = 4 to 32, with and without a warm start."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from simulations.lab.core import Setting
from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Graph, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Check, Figure, Reported, check, formatted, mean, most, reported
from simulations.lab.suites.graphs import bytes_graph, distance_graph, end_line
from simulations.lab.suites.model import EPIDEMIC, WIDER
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

OURS: Final = ("pairwise", "epidemic k=128", "epidemic k=256")
SHIPPED: Final = "pairwise"
"""the strategy that `auto` takes for any number of peers"""
CROSSING: Final = 10
"""most peers at which the rule of algorithms section 6, which nothing uses, would take epidemic"""
TIE: Final = 0.02
"""nats within which the simpler strategy counts as equal"""
ENOUGH: Final = 3
"""seeds needed for the decision"""

WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
}
WIDE: Final[Ways] = {"epidemic k=256": ("epidemic", WIDER)}
DDP: Final[Ways] = {"DDP": ("ddp", {})}
DILOCO: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", {"alpha": 1.0, "mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"alpha": 1.0, "mu": 0.6, "plain_first": True}),
}
BETTER: Final = {True: "DiLoCo fp32, mu 0.8", False: "DiLoCo fp32, mu 0.6"}
"""after a warm start, and cold, with seed 0 at N = 4 and 16 rounds"""
START: Final = ", its own warm start"
OWN: Final[Ways] = {
    f"{label}{START}": (method, {**options, "warmup_steps": WARMUP})
    for label, (method, options) in {**WAYS, **WIDE}.items()
}
"""the daemon's warm start, without synchronous steps"""
OWN_SIZES: Final = (4, 8, 16)

FACTORS: Final = (0.5, 1.0, 2.0)
"""factors of the setting's learning rate, at N = 4. At four times, seed 0 was worse by 0.3 nats"""
RATES: Final[Mapping[str, float]] = {}
"""by method, the best of `FACTORS` by the mean of three seeds. It is 1 for all of them"""
BY_RATE: Final = "N = 4, by learning rate"
TRIED: Final[Ways] = {**WAYS, **WIDE, **DDP, **DILOCO}
ALPHAS: Final[Ways] = {
    f"epidemic k=128, alpha {alpha:g}": ("epidemic", {**EPIDEMIC, "alpha": alpha}) for alpha in (1.0, 3.0, 4.0)
}
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
        add(group, setting, WIDE)
        add(group, setting, DDP, None if peers <= SOME else 1)
        add(group, setting, {BETTER[warm]: DILOCO[BETTER[warm]]})
        if full or peers < MANY:
            add(group, setting, {BETTER[not warm]: DILOCO[BETTER[not warm]]})
        if warm and peers in OWN_SIZES:
            own = {label: (method, {**options, "warmup_steps": warmup}) for label, (method, options) in OWN.items()}
            add(group, cold, own)
        if peers in (4, 8) and not warm:
            add(_settings(group), setting, ALPHAS, 1)
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
    own_starts = {group: _started(outcomes) for group, outcomes in groups.items() if set(OWN) <= set(outcomes)}
    kind, upto, why = decided({_size(group): outcomes for group, outcomes in own_starts.items()})
    tables = [
        _rules("Nats above the best of these three, by what is taken", groups, {}),
        _rules(
            "The same from the starts that the daemon has, which decide",
            own_starts,
            {f"what the rule decides ({_told_rule(kind, upto)})": (kind, upto)},
        ),
        _bytes(own_starts),
        *(curves_table(group, outcomes) for group, outcomes in groups.items()),
    ]
    if settings:
        tables.append(_otherwise(groups, settings))
    tables.append(_rates(results.groups[BY_RATE]))
    graphs = [bytes_graph(panels), distance_graph(panels)]
    drawn = [_peers(groups), *graphs] if len(panels) > 1 else graphs
    ships = "which it does" if not upto else "which is not what it does"
    notes = [f"**What `auto` has to take, by the rule above: {_told_rule(kind, upto)}, {ships}.** {why}"]
    return Findings(tables, checks, drawn, notes, figures)


def _started(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Labels of variants with a warm start of their own, by the label without it."""
    return {label.removesuffix(START): outcomes[label] for label in OWN}


def decided(sizes: Mapping[int, Mapping[str, Outcome]]) -> tuple[str, int, str]:
    """The epidemic that `auto` should take, up to how many contributing peers, and why. 0 for never.

    An epidemic is taken up to the largest N at which, and below which, it beats pairwise by more than `TIE` in the mean
    of `ENOUGH` seeds. Of two, the one taken further wins, or the one of fewer bytes. The other wins if it is better by
    more than `TIE` in the mean over these N.
    """
    reach, said = {}, []
    for label in (label for label in OURS if label != SHIPPED):
        reach[label] = 0
        held = True
        for peers, outcomes in sorted(sizes.items()):
            ahead = outcomes[SHIPPED].loss - outcomes[label].loss
            replicas = outcomes[SHIPPED].replica_loss - outcomes[label].replica_loss
            held = held and len(ahead.each) >= ENOUGH and ahead > TIE
            reach[label] = peers if held else reach[label]
            said.append(f"{label} at N = {peers} {formatted(ahead)} (single replicas {formatted(replicas)})")
    leaner, wider = reach
    kind = max(reach, key=lambda label: reach[label])
    upto = reach[kind]
    if upto and reach[leaner] == reach[wider]:
        better = mean([at[leaner].loss - at[wider].loss for peers, at in sizes.items() if peers <= upto])
        kind = wider if better > TIE else leaner
        said.append(f"{wider} below {leaner}, over these N: {formatted(better)}")
    return kind, upto, f"Nats below pairwise, each from its own start: {'; '.join(said)}."


def _told_rule(kind: str, upto: int) -> str:
    return f"{kind} while at most {upto} contribute, else {SHIPPED}" if upto else f"{SHIPPED}, always"


def _rates(group: Mapping[str, Outcome]) -> Table:
    rows = []
    for label, (method, _) in {**TRIED, **OWN}.items():
        losses = (formatted(group[_rated(label, factor)].losses) for factor in FACTORS)
        rows.append((label, *losses, f"{RATES.get(method, 1.0) * TRANSFORMER.lr:g}"))
    columns = ("method", *(f"{factor * TRANSFORMER.lr:g}" for factor in FACTORS), "played at")
    return Table("Learning rates, N = 4: loss, cold or with a start of its own", columns, rows)


def _judged(group: str, outcomes: Mapping[str, Outcome]) -> tuple[list[Check], list[Reported]]:
    """Marks of the shipped strategy, from the given start and from its own."""
    checks, figures = [], []
    diloco = [label for label in outcomes if label.startswith("DiLoCo")]
    starts: list[tuple[str, tuple[str, ...]]] = [(SHIPPED, OURS)]
    if set(OWN) <= set(outcomes):
        starts.append((f"{SHIPPED}{START}", tuple(OWN)))
    for shipped, ours in starts:
        other, above, replicas = _above(outcomes, shipped, ours)
        name = f"{group}: {shipped}, which is what auto takes, above the best of {len(ours)} ({other}), nats"
        checks.append(check(name, "<= 0.02", above, replicas=replicas))
        for label in ours:
            other, above, replicas = _above(outcomes, label, diloco)
            name = f"{group}: {label} above {other}, nats"
            if label == shipped:
                checks.append(check(name, "<= 0.05", above, replicas=replicas))
            else:
                figures.append(reported(name, above, replicas=replicas))
            _, above, replicas = _above(outcomes, label, ("DDP",))
            figures.append(reported(f"{group}: {label} above DDP at equal samples, nats", above, replicas=replicas))
    return checks, figures


def _above(outcomes: Mapping[str, Outcome], label: str, others: Sequence[str]) -> tuple[str, Figure, Figure]:
    """The best rival by the seeds that both have, the distance above it, and that of single replicas."""
    ours = outcomes[label]
    other = best(outcomes, others, lambda outcome: outcome.loss - ours.loss)
    return other, ours.loss - outcomes[other].loss, ours.replica_loss - outcomes[other].replica_loss


def _rules(title: str, groups: Mapping[str, Mapping[str, Outcome]], more: Mapping[str, tuple[str, int]]) -> Table:
    """Every strategy, and rules that take an epidemic up to some N: distance above the best of the project's
    strategies.
    """
    rules = {
        f"{SHIPPED}, which is what auto takes": (SHIPPED, 0),
        **{label: (label, sys.maxsize) for label in OURS if label != SHIPPED},
        **{
            f"{label} while at most {CROSSING} contribute, else pairwise": (label, CROSSING)
            for label in OURS
            if label != SHIPPED
        },
        **more,
    }
    rows = []
    for name, (kind, upto) in rules.items():
        above = [
            _above(outcomes, kind if _size(group) <= upto else SHIPPED, OURS)[1] for group, outcomes in groups.items()
        ]
        rows.append((name, *map(formatted, above), formatted(most(above))))
    note = f"The rule of algorithms section 6 is that of k=128 and {CROSSING}; the daemon's epidemic has k=256."
    return Table(title, ("", *groups, "the most"), rows, note)


def _bytes(groups: Mapping[str, Mapping[str, Outcome]]) -> Table:
    rows = [
        (label, *(formatted(outcomes[label].last(lambda point: point.bytes), 1) for outcomes in groups.values()))
        for label in OURS
    ]
    return Table("Bytes a parameter from these starts", ("", *groups), rows)


def _size(group: str) -> int:
    return int(group.split()[2].rstrip(","))


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
        rounds = {peers: outcomes[SHIPPED].setting.rounds for peers, outcomes in at.items()}
        equal = [peers for peers in SIZES if rounds[peers] == rounds[SIZES[0]]]
        panels["warm" if warm else "cold"] = {
            label: end_line({float(peers): at[peers][label] for peers in equal}, lambda point: point.loss)
            for label in (*WAYS, *DDP, BETTER[warm])
        }
    return Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", panels, log_x=True)


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer, and which strategy when?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, 32 rounds as designed, N = 4 to 32, "
    f"after a warm start of {WARMUP} synchronous steps and cold. Up to N = {OWN_SIZES[-1]} there are also the "
    "daemon's warm starts, of as many steps. DiLoCo has alpha 1, which B1 found better than 0.7. At N = "
    f"{MANY} there are {FEWER} rounds, and DiLoCo has one mu (32, and both with --full). Above N = {SOME} DDP "
    "and other settings have one seed. Differences use the seeds that both have. Each method trains at its "
    "best learning rate at N = 4, from the last table. A rule that was written before the runs decides what "
    f"`auto` should take, each strategy from its own start, with {ENOUGH} seeds. Pairwise, which is simpler, "
    f"is taken unless an epidemic is better by more than {TIE} nats in the mean at N = {OWN_SIZES[0]} and "
    "every larger N up to some N. The epidemic is then taken up to that N. Of k=128 and k=256 the one taken "
    f"further wins. Otherwise k=128 wins, whose bytes are fewer, unless k=256 is better by more than {TIE} "
    "nats in the mean over these N. Bytes decide nothing else, and are shown.",
    arms=_arms,
    read=_read,
    tried="alpha 1, 3 and 4 of epidemic, 0.7 of DiLoCo, early exchanges in none and in all rounds, kappa 0 and mu 0.8 "
    "of pairwise, learning rates, and the other strategies: here; other sizes and settings, on another model: "
    "[b2](b2.md), [defaults](defaults.md)",
)
