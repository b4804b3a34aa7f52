"""B5: attackers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal

from simulations.lab.core import Setting
from simulations.lab.robustness.attacks import ATTACKS
from simulations.lab.runs.runs import Run
from simulations.lab.suites.arms import explicit_options
from simulations.lab.suites.base import Arm, Findings, Graph, Line, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import check, formatted, mean, reported

__all__ = ["SUITE"]

DIGITS: Final = Setting(peers=16, every=10, rounds=40, lr=3e-3, evaluate_every=10)
BAD: Final = 3
SHARES: Final = (0, 1, 2, 3, 4, 6)
OVER: Final = ("sign flip", "alie z=1.5", "dissensus")
"""attacks in the picture"""
DESIGNED: Final = ("sign flip", "alie", "dissensus", "nan")
"""the attacks of algorithms section 10"""
HARSHER: Final = ("sign flip x10", "alie z=1.5")
"""the first two, stronger; of all other attacks the page shows the worst beside the marks"""
MARKED: Final = (*DESIGNED, *HARSHER)

WAYS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "pairwise, no clipping": ("pairwise-attacked", {"clip": math.inf}),
    "pairwise, clipping": ("pairwise-attacked", {}),
    "pairwise, clipping, one exchange": ("pairwise-attacked", {"early": 0.0, "exchanges": 1}),
    "pairwise, clip 1": ("pairwise-attacked", {"clip": 1.0}),
    "pairwise, clip 2": ("pairwise-attacked", {"clip": 2.0}),
    "pairwise, clip 1, kappa 0": ("pairwise-attacked", {"clip": 1.0, "kappa": 0.0}),
}
DEFENCES: Final = {"pairwise, clipping": 0.08}
"""accuracy that may be lost, mean over the honest peers' own models; from the design"""
BARE: Final = ("pairwise, no clipping",)
"""attacks without any defence"""
TRIED: Final = tuple(label for label in WAYS if label not in (*DEFENCES, *BARE))
"""other defences, which are not the default and have no marks"""


def _group(attack: str, bad: int) -> str:
    return f"{attack}, {bad} bad"


def _arm(label: str, attack: str, bad: int, setting: Setting) -> Arm:
    method, options = WAYS[label]
    flips = attack == "label flip" and bad > 0
    data = {"of": "digits-mlp", "bad": bad, "attack": attack} if flips else {}
    run = Run(
        setting=setting,
        problem="flipped" if flips else "digits-mlp",
        data=data,
        method=method,
        options=explicit_options(method, {**options, "attack": "none" if flips else attack, "bad": bad}),
    )
    return Arm(_group(attack, bad), label, run)


def _arms(scale: Scale) -> list[Arm]:
    setting = DIGITS if scale != "quick" else Setting(peers=16, every=5, rounds=6, lr=3e-3, evaluate_every=6)
    attacks = [name for name in ATTACKS if name != "none"] if scale != "quick" else list(MARKED)
    found = [_arm(label, "none", 0, setting) for label in WAYS]
    found += [_arm(label, attack, BAD, setting) for attack in attacks for label in WAYS]
    if scale != "quick":
        found += [
            _arm(label, attack, bad, setting)
            for attack in OVER
            for bad in SHARES
            for label in WAYS
            if bad not in (0, BAD)
        ]
    return found


def _accuracy(outcome: Outcome, whose: Literal["honest", "worst"] = "honest") -> list[float]:
    """Accuracy per seed of the honest peers' own models, mean or worst."""
    same = outcome.last(lambda point: point.accuracy)
    told_by = [{} if answer.error else answer.result["facts"] for answer in outcome.answers if same]
    return [facts.get(whose, shared) for facts, shared in zip(told_by, same, strict=True)]


def _read(results: Results) -> Findings:
    calm = results.groups[_group("none", 0)]
    checks, others = [], []
    for label in (*DEFENCES, *TRIED, *BARE):
        lost = {
            attack: 100 * (mean(_accuracy(calm[label])) - mean(_accuracy(results[_group(attack, BAD), label])))
            for attack in ATTACKS
            if _group(attack, BAD) in results.groups
        }
        # A missing figure counts as the worst.
        by_loss = sorted(lost, key=lambda attack: math.inf if math.isnan(lost[attack]) else lost[attack])
        for attacks in (DESIGNED, HARSHER):
            worst = [attack for attack in by_loss if attack in attacks][-1]
            name = f"{label}: accuracy lost, worst of {', '.join(attacks)} ({worst}), points"
            if label in DEFENCES:
                checks.append(check(name, f"<= {100 * DEFENCES[label]:.0f}", lost[worst], digits=1))
            else:
                bare = "without defence, " if label in BARE else ""
                others.append(reported(f"{bare}{name}", lost[worst], digits=1))
        name = f"{label}: accuracy lost, worst of all {len(lost)} attacks ({by_loss[-1]}), points"
        others.append(reported(name, lost[by_loss[-1]], digits=1))
    tables = [
        _table(results, "of the honest peers' own models, their mean", _accuracy),
        _table(results, "of the honest peer's that holds the worst", lambda outcome: _accuracy(outcome, "worst")),
        _table(results, "of the honest peers' mean, a model that no peer holds", _last),
    ]
    return Findings(tables, checks, [_shares(results)] if _group(OVER[0], 1) in results.groups else [], (), others)


def _last(outcome: Outcome) -> list[float]:
    return outcome.last(lambda point: point.accuracy)


def _table(results: Results, whose: str, of: Callable[[Outcome], list[float]]) -> Table:
    return Table(
        f"Held-out accuracy {whose}, %; N = {DIGITS.peers}",
        ("attack", *WAYS),
        [
            (group, *(formatted([100.0 * value for value in of(outcome)], 1) for outcome in outcomes.values()))
            for group, outcomes in results.groups.items()
        ],
        "Pairwise without clipping has no defence. Its column shows the damage of an attack.",
    )


def _shares(results: Results) -> Graph:
    panels: dict[str, dict[str, Line]] = {
        attack: {label: _line(results, attack, label) for label in WAYS} for attack in OVER
    }
    title = "Accuracy of the honest peers' own models against the share of bad peers"
    return Graph("shares", title, "share of bad peers", "held-out accuracy", panels)


def _line(results: Results, attack: str, label: str) -> Line:
    found = {}
    for bad in SHARES:
        values = _accuracy(results[_group(attack, bad) if bad else _group("none", 0), label])
        if values:
            found[bad / DIGITS.peers] = values
    return Line(
        list(found),
        [mean(values) for values in found.values()],
        [min(values) for values in found.values()],
        [max(values) for values in found.values()],
    )


SUITE = Suite(
    name="b5",
    question="What can bad peers do?",
    about="Digits MLP, N = 16, H = 10, 40 rounds, three bad peers that know everything and collude. All attacks of "
    "simulations/lab/robustness/attacks.py are played, also those without a mark. Links take no time: "
    "exchanges of a round are made at once. The figure is the accuracy of the model that each honest peer "
    "holds. Marks are for pairwise's default clipping. The other variants were tried.",
    arms=_arms,
    read=_read,
    tried="clips of 1 and 2, kappa 0, one exchange a round: here, without a mark",
)
