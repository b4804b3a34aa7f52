"""What a run of `chaos` is asked for, and what it tells in the end. Nothing is done here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulations.processes.namespaces.faults import KINDS
from simulations.processes.namespaces.hosts import Weather

__all__ = ["Plan", "Report"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Times in seconds, memory as a share; the bounds leave room for a loaded machine."""

    hosts: int = 4
    seconds: float = 60.0
    seed: int = 1
    rate: str | None = None
    rtt: float = 0.0
    loss: float = 0.0
    """while the faults last"""
    kinds: Sequence[str] = tuple(KINDS)
    pause: tuple[float, float] = (0.5, 2.0)
    """between two faults"""
    failing: float = 0.0
    """share of the exchanges that is made to fail, by cuts in the middle of them"""
    size: int = 50_000
    """parameters of the model"""
    pace: float = 0.02
    """of the training processes' steps"""
    quiet: float = 5.0
    """length of the beginning that the end is measured against"""
    together: float = 30.0
    """within which all must know each other after the last fault; twice that with a round trip of a WAN"""
    warm_up: float = 3.0
    """of a daemon's life, before its memory is measured"""
    growth: float = 1.20
    """resident memory of a daemon at the end, as a share of that after its warm-up; many lives here are short"""
    undisturbed: float = 0.0
    """steps/s that the others keep while one host is starved, as a share of those in the quiet beginning; 0: any"""
    descriptors: int = 24
    """that may come to it: links are made anew all the time, and each takes some"""

    @property
    def wan(self) -> bool:
        return self.rtt >= 0.05

    @property
    def bound(self) -> float:
        return self.together * (2.0 if self.wan else 1.0)

    @property
    def weather(self) -> Weather:
        return Weather.of(self.rtt)


@dataclass
class Report:
    violations: list[str] = field(default_factory=list)
    faults: int = 0
    failed: float = 0.0
    """share of the exchanges that did not come to their regular end while the faults lasted"""
    undisturbed: float = float("nan")
    """share of their steps/s that the others kept while one host was starved"""
    figures: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)

    def table(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        cells = [columns, *([str(row[column]) for column in columns] for row in self.rows)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in self.figures.items())])
