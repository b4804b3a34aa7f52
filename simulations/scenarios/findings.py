"""What a run reports: marks, rows of a table, graphs and events. `tables` prints it, `picture` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulations.check import Check
from simulations.scenarios.shrink import Failure
from simulations.simulator.plans import Plan

__all__ = ["Findings", "Panel", "Report"]


@dataclass(frozen=True)
class Panel:
    """One graph."""

    title: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """name -> (x, y) of each line"""
    log: bool = False
    """logarithmic y axis"""
    mark: float | None = None
    """level to be reached"""
    steps: bool = False
    """draw steps instead of slopes"""
    bars: tuple[str, ...] = ()
    """names of the places 0, 1, ... if the graph shows bars"""
    across: str = "virtual seconds"
    """label of the x axis"""


@dataclass(frozen=True)
class Findings:
    """Table, marks and graphs of one run."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    checks: Sequence[Check]
    panels: Sequence[Panel]
    spans: Sequence[tuple[float, float, str]] = ()
    """shaded times: from, to, what happened"""


@dataclass(frozen=True)
class Report:
    """Result of one run, or of several seeds taken together."""

    scenario: str
    question: str
    seed: int
    peers: int
    findings: Findings
    violation: str
    """text of the broken invariant, or an empty string"""
    failure: Failure | None
    """the broken invariant, if the run has a plan that can shrink"""
    plan: Plan | None
    events: int
    seconds: float
    """virtual seconds"""
    wall: float
    """real seconds"""
    log_hash: str = ""
    seeds: int = 1
    """number of seeds, from `seed` on"""

    @property
    def of(self) -> str:
        """Scenario, seeds and peers."""
        seeds = f"seed {self.seed}" if self.seeds == 1 else f"seeds {self.seed} to {self.seed + self.seeds - 1}"
        return f"{self.scenario}, {seeds}, {self.peers} peers"

    @property
    def passed(self) -> bool:
        return not self.violation and all(check.passed for check in self.findings.checks)
