"""B7: pure consensus, every line of the table of algorithms section 7."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite
from simulations.lab.suites.figures import Check
from simulations.lab.theory import consensus
from simulations.lab.theory.consensus import Row

__all__ = ["SUITE", "Lines"]

TRIALS: Final = 20_000
PEERS: Final = 16
"""of `Still`"""
EXACT: Final = "exact after"
"""marks names of lines that allow no deviation"""


@dataclass(frozen=True)
class Lines:
    """`consensus.measure` as a task."""

    trials: int = TRIALS
    seed: int = 0

    @property
    def name(self) -> str:
        return f"consensus, {self.trials} trials, seed {self.seed}"

    def seeded(self, seed: int) -> Lines:
        return replace(self, seed=seed)

    def spec(self) -> dict[str, Any]:
        return {"kind": "consensus", "trials": self.trials, "seed": self.seed}

    def modules(self) -> set[str]:
        return {"simulations.lab.theory.consensus"}

    def play(self) -> dict[str, Any]:
        return {"rows": [row._asdict() for row in consensus.measure(self.trials, self.seed)]}

    def estimate(self) -> float:
        return 2.0 + self.trials / 220.0


@dataclass(frozen=True)
class Still(Lines):
    """`consensus.growth` without outer momentum. kappa has no effect then."""

    @property
    def name(self) -> str:
        return f"consensus, mu 0, {self.trials} trials, seed {self.seed}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "consensus, mu 0", "trials": self.trials, "seed": self.seed, "peers": PEERS}

    def play(self) -> dict[str, Any]:
        expected = consensus.momentum(PEERS, 0.0, 0.0)
        measured = consensus.growth(PEERS, 0.0, 0.0, self.trials, self.seed)
        deviation = abs(measured / expected - 1.0)
        formula = f"growth, mu 0, N {PEERS}: sqrt((N-2)/(2(N-1)))"
        return {"rows": [Row(formula, expected, measured, deviation, deviation <= consensus.WITHIN)._asdict()]}

    def estimate(self) -> float:
        return 1.0 + self.trials / 10_000.0


def _arms(scale: Scale) -> list[Arm]:
    trials = TRIALS if scale != "quick" else 5_000
    return [Arm("", "lines", Lines(trials)), Arm("", "mu 0", Still(trials))]


def _read(results: Results) -> Findings:
    checks = []
    for outcome, lines in ((played, lines) for played in results.only.values() for lines in _lines(played)):
        first = lines[0]
        within = consensus.WITHIN_NOISE if first["formula"].startswith("CD^2") else consensus.WITHIN
        worst = max(line["deviation"] for line in lines)
        values = [line["measured"] for line in lines]
        exact = EXACT in first["formula"]
        measured = f"{np.mean(values):.4f}, worst of the seeds {100 * worst:.2f} % off"
        mark = f"{first['expected']:.0f} exactly" if exact else f"{first['expected']:.4f} to {100 * within:.0f} %"
        measured += f"; {outcome.failed} seeds failed" if outcome.failed else ""
        passed = all(line["ok"] for line in lines) and not outcome.failed
        checks.append(Check(first["formula"], mark, measured, passed))
    # If no seed of a task was played, there are no lines to miss.
    checks += [
        Check(f"all lines of {label}", "1 seed at the least", "failed", False)
        for label, outcome in results.only.items()
        if outcome.failed == len(outcome.answers)
    ]
    return Findings((), checks)


def _lines(outcome: Outcome) -> list[tuple[dict[str, Any], ...]]:
    """Measured values, seed by seed."""
    return list(zip(*(answer.result["rows"] for answer in outcome.answers if not answer.error), strict=True))


SUITE = Suite(
    name="b7",
    question="Do replicas agree as fast as the formulas say?",
    about="Pure consensus: random matchings, and the product's own schedules. Growth of disagreement with and "
    "without outer momentum, by a few lines of numpy and by the product's pairwise. The distance of replicas "
    "of a quadratic with known noise, by the product's pairwise. The deviation of a contraction is that of "
    "the factor or of its logarithm, whichever is larger. The formula of growth under decoupled momentum is "
    "max(sqrt(rho), mu). Above mu 0.7 replicas agree no faster than momentum fades. So the growth below 0.7 "
    "of algorithms section 9 holds up to there, and below 1 everywhere.",
    arms=_arms,
    read=_read,
)
