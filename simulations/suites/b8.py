"""B8: a transformer, N = 4 to 32, with and without a warm start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from simulations.lab import Setting
from simulations.suites.b1 import EPIDEMIC, WIDER
from simulations.suites.base import (
    Arm,
    Check,
    Figure,
    Findings,
    Graph,
    Outcome,
    Reported,
    Results,
    Scale,
    Suite,
    Table,
    Ways,
    against,
    arms,
    best,
    bytes_graph,
    check,
    curves_table,
    distance_graph,
    reported,
    sized,
    told,
)

__all__ = ["SUITE", "TRANSFORMER"]

TRANSFORMER: Final = Setting(peers=8, every=30, rounds=32, lr=2e-3, evaluate_every=4)
"""the learning rate is the best of `RATES` for pairwise, and near the best for DDP"""
SIZES: Final = (4, 8, 16, 32)
WARMUP: Final = 120
MANY: Final = 32
"""peers from which on a run has `FEWER` rounds"""
FEWER: Final = 16
FEW: Final = 4
"""peers up to which DiLoCo's other mu is played with every seed"""

OURS: Final = ("pairwise", "epidemic k=128", "epidemic k=256")
SHIPPED: Final = "pairwise"
"""what `auto` takes, whatever the number of peers"""
CROSSING: Final = 10
RULE: Final = "epidemic k=128"
"""what the rule of algorithms section 6, which nothing takes, would take while at most `CROSSING` peers contribute"""

WAYS: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
}
WIDE: Final[Ways] = {"epidemic k=256": ("epidemic", WIDER)}
DDP: Final[Ways] = {"DDP": ("ddp", {})}
"""which no mark is about: one seed"""
DILOCO: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8, "plain_first": True}),
    "DiLoCo fp32, mu 0.6": ("diloco", {"mu": 0.6, "plain_first": True}),
}
BETTER: Final = {True: "DiLoCo fp32, mu 0.8", False: "DiLoCo fp32, mu 0.6"}
"""after a warm start, and cold, with seed 0 at N = 4 and 16 rounds"""
OWN: Final[Ways] = {
    "pairwise, its own warm start": ("pairwise", {"warmup_steps": WARMUP}),
    "epidemic k=128, its own warm start": ("epidemic", {**EPIDEMIC, "warmup_steps": WARMUP}),
}
"""no synchronous steps: what the daemon does"""
OWN_SIZES: Final = (4, 8, 16)
SOME: Final = 8
"""peers up to which epidemic's own start, and its k = 256, are played with every seed"""

RATES: Final = (1e-3, 4e-3, 8e-3)
"""besides the setting's own"""
TRIED: Final[Ways] = {**WAYS, **DDP, "DiLoCo fp32, mu 0.6": DILOCO["DiLoCo fp32, mu 0.6"]}
BY_RATE: Final = "N = 4, cold, lr"
ALPHAS: Final[Ways] = {
    f"epidemic k=128, alpha {alpha:g}": ("epidemic", {**EPIDEMIC, "alpha": alpha}) for alpha in (1.0, 3.0, 4.0)
}
OTHERWISE: Final[Ways] = {
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "pairwise, early exchanges in all rounds": ("pairwise", {"early": 1.0}),
    "pairwise, kappa 0": ("pairwise", {"kappa": 0.0}),
}
SETTINGS: Final = "settings"


def _group(peers: int, *, warm: bool) -> str:
    return f"N = {peers}, {'warm' if warm else 'cold'}"


def _settings(group: str) -> str:
    return f"{SETTINGS}, {group}"


def _arms(scale: Scale) -> list[Arm]:
    full, quick = scale == "full", scale == "quick"
    base = sized(TRANSFORMER, scale)
    warmup = WARMUP if not quick else 5
    found: list[Arm] = []

    def add(group: str, setting: Setting, ways: Ways, seeds: int | None = None) -> None:
        found.extend(arms(group, setting, ways, problem="byte-transformer", seeds=None if full else seeds))

    for peers, warm in product(SIZES if not quick else SIZES[:1], (True, False)):
        group = _group(peers, warm=warm)
        cold = replace(base, peers=peers)
        if peers >= MANY and not full:
            cold = replace(cold, rounds=min(base.rounds, FEWER))
        setting = replace(cold, warmup=warmup if warm else 0)
        add(group, setting, WAYS)
        add(group, setting, WIDE, None if peers <= SOME else 1)
        add(group, setting, DDP, 1)
        add(group, setting, {BETTER[warm]: DILOCO[BETTER[warm]]})
        if full or peers < MANY:
            add(group, setting, {BETTER[not warm]: DILOCO[BETTER[not warm]]}, None if peers <= FEW else 1)
        if warm and peers in OWN_SIZES:
            for label, (method, options) in OWN.items():
                every_seed = peers <= SOME or label.startswith(SHIPPED)
                way = method, {**options, "warmup_steps": warmup}
                add(group, cold, {label: way}, None if every_seed else 1)
        if peers in (4, 8) and not warm:
            add(_settings(group), setting, ALPHAS, 1)
        if peers == 8 or quick:
            add(_settings(group), setting, OTHERWISE, 1)
    for rate in RATES:
        add(f"{BY_RATE} {rate:g}", replace(base, peers=SIZES[0], lr=rate), TRIED, 1)
    return found


def _read(results: Results) -> Findings:
    checks: list[Check] = []
    figures: list[Reported] = []
    by_rate = {group: outcomes for group, outcomes in results.groups.items() if group.startswith(BY_RATE)}
    settings = {group: outcomes for group, outcomes in results.groups.items() if group.startswith(SETTINGS)}
    groups = {group: those for group, those in results.groups.items() if group not in {*by_rate, *settings}}
    for group, outcomes in groups.items():
        found, others = _judged(group, outcomes)
        checks += found
        figures += others
    panels = {group: outcomes for group, outcomes in groups.items() if group.endswith("warm")}
    tables = [_rules(groups), *(curves_table(group, outcomes) for group, outcomes in groups.items())]
    if settings:
        tables.append(_otherwise(groups, settings))
    own = groups[_group(SIZES[0], warm=False)]
    rates = {f"lr {group.rpartition(' ')[2]}": outcomes for group, outcomes in by_rate.items()}
    rows = [
        (rate, *(told(outcomes[label].losses) for label in TRIED))
        for rate, outcomes in {f"lr {TRANSFORMER.lr:g}": own, **rates}.items()
    ]
    tables.append(Table(f"Loss by the learning rate, N = {SIZES[0]}, cold", ("", *TRIED), rows))
    graphs = [bytes_graph(panels), distance_graph(panels)]
    return Findings(tables, checks, [_peers(groups), *graphs] if len(panels) > 1 else graphs, reported=figures)


def _judged(group: str, outcomes: Mapping[str, Outcome]) -> tuple[list[Check], list[Reported]]:
    """What ships has marks, from the start that is given and from its own; the others have none."""
    checks, figures = [], []
    diloco = [label for label in outcomes if label.startswith("DiLoCo")]
    starts: list[tuple[str, tuple[str, ...]]] = [(SHIPPED, OURS)]
    if set(OWN) <= set(outcomes):
        starts.append((next(label for label in OWN if label.startswith(SHIPPED)), tuple(OWN)))
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
    """The best of the others by the seeds that both have, and how much worse than it this one is; single replicas."""
    ours = outcomes[label]
    other = best(outcomes, others, lambda outcome: outcome.loss - ours.loss)
    return other, ours.loss - outcomes[other].loss, ours.replica_loss - outcomes[other].replica_loss


def _rules(groups: Mapping[str, Mapping[str, Outcome]]) -> Table:
    """Each strategy, and the rule that nothing takes: how much worse than the best of ours."""
    ours = {group: {label: outcomes[label] for label in OURS} for group, outcomes in groups.items()}
    named = f"the rule of algorithms section 6 ({RULE} while at most {CROSSING} contribute, else pairwise)"
    taken = {
        **{label: dict.fromkeys(groups, label) for label in OURS},
        named: {group: RULE if _size(group) <= CROSSING else "pairwise" for group in groups},
    }
    rows = []
    for name, labels in taken.items():
        above = [_above(ours[group], labels[group], OURS)[1] for group in groups]
        most = math.nan if any(map(math.isnan, above)) else max(above)
        title = f"{name}, which is what auto takes" if name == SHIPPED else name
        rows.append((title, *map(told, above), told(float(most))))
    return Table("Nats above the best of these three, by what is taken", ("", *groups, "the most"), rows)


def _size(group: str) -> int:
    return int(group.split()[2].rstrip(","))


def _otherwise(groups: Mapping[str, Mapping[str, Outcome]], settings: Mapping[str, Mapping[str, Outcome]]) -> Table:
    rows = []
    for group, outcomes in settings.items():
        usual = groups[group.removeprefix(f"{SETTINGS}, ")]
        for label, outcome in outcomes.items():
            plain = usual[label.rpartition(",")[0]]
            rows.append((group, label, told(outcome.losses), told(outcome.loss - plain.loss)))
    return Table("Other settings", ("", "method", "loss", "above the same without it"), rows)


def _peers(groups: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    """Of the sizes that have as many rounds as the least."""
    panels = {}
    for warm in (True, False):
        at = {peers: groups[_group(peers, warm=warm)] for peers in SIZES}
        rounds = {peers: outcomes[SHIPPED].setting.rounds for peers, outcomes in at.items()}
        alike = [peers for peers in SIZES if rounds[peers] == rounds[SIZES[0]]]
        panels["warm" if warm else "cold"] = {
            label: against({float(peers): at[peers][label] for peers in alike}, lambda point: point.loss)
            for label in (*WAYS, *DDP, BETTER[warm])
        }
    return Graph("peers", "Loss against the number of peers", "peers", "held-out loss, nats", panels, log_x=True)


SUITE = Suite(
    name="b8",
    question="Does it hold for a transformer, and which strategy when?",
    about="Byte-level transformer of 252,384 parameters, two blocks, H = 30, 32 rounds as designed, N = 4 to 32, after "
    f"a warm start of {WARMUP} synchronous steps and cold; beside the former, up to N = {OWN_SIZES[-1]}, starts of as "
    f"many steps as the daemon has them. At N = {MANY} there are {FEWER} rounds, and DiLoCo has one mu "
    "(32, and both with --full). DDP, above "
    f"N = {FEW} DiLoCo's other mu, and above N = {SOME} epidemic k=256 and its own start are of one seed; differences "
    "are of the seeds that both have. The learning rate is one for all, the best of a few of one seed at N = 4, not "
    "tuned for each method and size.",
    arms=_arms,
    read=_read,
    tried="alpha 1, 3 and 4 of epidemic, early exchanges in none and in all rounds and kappa 0 of pairwise, learning "
    "rates, and the other strategies: here; other sizes and settings, on another model: [b2](b2.md), "
    "[defaults](defaults.md)",
)
