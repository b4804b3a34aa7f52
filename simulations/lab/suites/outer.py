"""The outer step of `pairwise`: alpha and mu for few and many rounds, free and slow links.

Each place is the setting of another suite. This suite repeats none of their marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulations.lab.suites.arms import arms, at_scale, with_short_start
from simulations.lab.suites.b1_arms import FIELD
from simulations.lab.suites.b4 import LARGE, RATED, SMALL, unequal
from simulations.lab.suites.b8 import SIZES, TRANSFORMER
from simulations.lab.suites.b9 import LONG, TRANSFORMING, late
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import check, formatted, mean, most
from simulations.lab.suites.model import MLP, WARMUP
from simulations.lab.suites.momenta import Clocked
from simulations.lab.suites.rates import RATES

__all__ = ["SUITE"]

SHIPPED: Final = "the daemon's choice"
STEPS: Final[Mapping[str, Mapping[str, float]]] = {
    SHIPPED: {},
    **{
        f"alpha {alpha:g}, mu {mu:g}": {"lr": alpha, "momentum": mu}
        for alpha, mu in ((0.7, 0.4), (0.7, 0.6), (0.7, 0.7), (0.7, 0.8), (1.0, 0.6), (1.0, 0.7))
    },
}
"""options of pairwise, by label"""
COLD, OWN = "cold", "its own warm start"
STARTS: Final = {COLD: {}, OWN: {"warmup_steps": WARMUP}}
FREE: Final = "equal speeds, free links (B1)"
FREE_TRANSFORMER: Final = "equal speeds, free links, transformer (B8)"
UNEQUAL: Final = {f"speeds 1:2:4, {model} (B4)": model for model in (SMALL, LARGE)}
LATE: Final = {f"10^9 parameters, {model} (B9)": model for model in (LONG, TRANSFORMING)}
RIVAL: Final = "DiLoCo fp32, alpha 1, mu 0.8"
WITHIN: Final = 0.02
"""nats behind the best step, at any place"""
ALLOWED: Final = 0.05
"""nats above DiLoCo at B1's place, cold: the mark of B1 (algorithms section 10)"""


def _place(name: str, start: str) -> str:
    return f"{name}, {start}"


def _ways(start: str, every: int) -> Clocked:
    return {label: ("pairwise", {**step, **STARTS[start]}, every) for label, step in STEPS.items()}


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []
    for start in STARTS:
        free = {
            label: (method, with_short_start(options, scale)) for label, (method, options, _) in _ways(start, 0).items()
        }
        found += arms(_place(FREE, start), at_scale(MLP, scale), free)
        if start == COLD:
            found += arms(_place(FREE, start), at_scale(MLP, scale), {RIVAL: FIELD[RIVAL]}, rates=RATES)
        transformer = at_scale(replace(TRANSFORMER, peers=SIZES[0]), scale)
        found += arms(_place(FREE_TRANSFORMER, start), transformer, free, problem="byte-transformer")
        for name, model in UNEQUAL.items():
            found += unequal(_place(name, start), model, _ways(start, 20), RATED, scale)
        for name, model in LATE.items():
            # With the slow transformer, only the daemon's warm start.
            if model != TRANSFORMING or start == OWN:
                found += late(_place(name, start), model, _ways(start, 50), scale)
    return found


def _read(results: Results) -> Findings:
    places = {
        group: {step: next(one for label, one in outcomes.items() if label.startswith(step)) for step in STEPS}
        for group, outcomes in results.groups.items()
    }
    behind = {group: _behind(outcomes) for group, outcomes in places.items()}
    at_b1 = _place(FREE, COLD)
    above = {step: places[at_b1][step].loss - results[at_b1, RIVAL].loss for step in STEPS}
    columns = ("", *STEPS)
    rows = [(group, *(formatted(outcomes[step].losses) for step in STEPS)) for group, outcomes in places.items()]
    single = [
        (group, *(formatted(outcomes[step].replica_losses) for step in STEPS)) for group, outcomes in places.items()
    ]
    apart = [(group, *(f"{those[step]:.3f}" for step in STEPS)) for group, those in behind.items()]
    farthest = {step: most([those[step] for those in behind.values()]) for step in STEPS}
    apart.append(("the most", *(f"{farthest[step]:.3f}" for step in STEPS)))
    apart.append(("in the mean", *(f"{mean([those[step] for those in behind.values()]):.3f}" for step in STEPS)))
    apart.append((f"above {RIVAL} at B1's place, cold", *(f"{above[step]:.3f}" for step in STEPS)))
    tables = [
        Table("Nats behind the best of these", columns, apart),
        Table("Loss", columns, rows),
        Table("Loss of single replicas", columns, single),
    ]
    marks = [
        check(f"{SHIPPED} behind the best, where it is most, nats", f"<= {WITHIN}", farthest[SHIPPED]),
        check(f"{SHIPPED} above {RIVAL} at B1's place, cold, nats", f"<= {ALLOWED}", above[SHIPPED]),
    ]
    return Findings(tables, marks)


def _behind(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Distance of each step's mean over the seeds above the best step; NaN for all if one failed."""
    least = most([-outcome.loss for outcome in outcomes.values()])
    return {step: float(outcome.loss) + least for step, outcome in outcomes.items()}


SUITE = Suite(
    name="outer",
    question="Which outer step suits pairwise wherever it is?",
    about=f"alpha and mu of pairwise, cold and from the daemon's own warm start of {WARMUP} steps, at the places of "
    f"other suites: B1 (N = 16, H = 20, 60 rounds, instant links), B8 (a transformer, N = {SIZES[0]}, H = 30, "
    f"32 rounds, instant links), B4 (N = 8, speeds 1:2:4, {RATED:.0f} s on links of 100 Mbit/s) and B9 (N = 8, "
    "an exchange fills most of a round; for the transformer the warm start alone). The daemon's choice must "
    f"be at most {WITHIN} nats behind the best pair everywhere.",
    arms=_arms,
    read=_read,
    tried="the other pairs, here; mu 0 and other alphas: [defaults](defaults.md), [b4](b4.md), [b9](b9.md)",
)
