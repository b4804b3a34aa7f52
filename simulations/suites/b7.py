"""B7: pure consensus, every line of the table of algorithms section 7."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simulations import lab_consensus
from simulations.suites.base import Arm, Check, Findings, Results, Scale, Suite, Table, told

__all__ = ["SUITE", "Lines"]

TRIALS: Final = 20_000
EXACT: Final = "exact after"
"""in the names of lines that leave no room"""


@dataclass(frozen=True)
class Lines:
    """`lab_consensus.measure` as a task."""

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
        return {"simulations.lab_consensus"}

    def play(self) -> dict[str, Any]:
        return {"rows": [row._asdict() for row in lab_consensus.measure(self.trials, self.seed)]}

    def estimate(self) -> float:
        return 2.0 + self.trials / 4000.0


def _arms(scale: Scale) -> list[Arm]:
    return [Arm("", "lines", Lines(TRIALS if scale != "quick" else 5_000))]


def _read(results: Results) -> Findings:
    outcome = results.only["lines"]
    runs = [answer.told["rows"] for answer in outcome.answers if not answer.error]
    checks, rows = [], []
    for lines in zip(*runs, strict=True):
        first = lines[0]
        within = lab_consensus.WITHIN_NOISE if first["formula"].startswith("CD^2") else lab_consensus.WITHIN
        worst = max(line["deviation"] for line in lines)
        values = [line["measured"] for line in lines]
        rows.append((first["formula"], f"{first['expected']:.4f}", told(values, 4), f"{100 * worst:.2f} %"))
        exact = EXACT in first["formula"]
        measured = f"{np.mean(values):.4f}, worst of the seeds {100 * worst:.2f} % off"
        mark = f"{first['expected']:.0f} exactly" if exact else f"{first['expected']:.4f} to {100 * within:.0f} %"
        measured += f"; {outcome.failed} seeds failed" if outcome.failed else ""
        passed = all(line["ok"] for line in lines) and not outcome.failed
        checks.append(Check(first["formula"], mark, measured, passed))
    table = Table("All lines", ("formula", "says", "measured", "worst deviation"), rows)
    return Findings([table], checks)


SUITE = Suite(
    name="b7",
    question="Do replicas agree as fast as the formulas say?",
    about="Pure consensus, trials of random matchings and the product's own schedules; growth of disagreement under "
    "outer momentum; how far replicas of a quadratic with known noise stay apart, by the product's pairwise. "
    "Deviation of a contraction is that of the factor or of its logarithm, whichever is larger.",
    arms=_arms,
    read=_read,
)
