"""Plan and report of a run of `chaos`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulations.processes.namespaces.faults import KINDS
from simulations.processes.namespaces.hosts import Weather

__all__ = ["Plan", "Report"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a run. Times in seconds. The bounds leave room for a loaded machine."""

    hosts: int = 4
    seconds: float = 60.0
    seed: int = 1
    rate: str | None = None
    rtt: float = 0.0
    loss: float = 0.0
    """probability that a packet is lost while the faults last"""
    kinds: Sequence[str] = tuple(KINDS)
    pause: tuple[float, float] = (0.5, 2.0)
    """shortest and longest time between two faults"""
    failing: float = 0.0
    """share of the exchanges that cuts make fail"""
    size: int = 50_000
    """parameters of the model"""
    pace: float = 0.02
    """seconds per training step"""
    quiet: float = 5.0
    """seconds of the quiet begin that the end is compared with"""
    together: float = 30.0
    """seconds after the last fault until all must know all; twice that with the round trip of a WAN"""
    warm_up: float = 3.0
    """age of a daemon from which its memory is measured"""
    growth: float = 1.20
    """largest growth factor of a daemon's resident memory after its warm-up; many lives are short here"""
    undisturbed: float = 0.0
    """least share of their steps/s that hosts keep while another is starved; 0: no limit"""
    descriptors: int = 24
    """most new descriptors; links open and close all the time"""

    @property
    def wan(self) -> bool:
        return self.rtt >= 0.05

    @property
    def bound(self) -> float:
        return self.together * (2.0 if self.wan else 1.0)

    @property
    def weather(self) -> Weather:
        return Weather.of(self.rtt)


@dataclass(frozen=True)
class Report:
    """Result of a run."""

    violations: list[str] = field(default_factory=list)
    faults: int = 0
    failed: float = 0.0
    """share of the exchanges that failed during the faults"""
    undisturbed: float = float("nan")
    """share of their steps/s that hosts kept while another was starved"""
    figures: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)

    def table(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        cells = [columns, *([str(row[column]) for column in columns] for row in self.rows)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in self.figures.items())])
