"""What a suite is: arms, each played with every seed, and what it reads from their outcomes: tables, marks, graphs.

A suite holds no result and plays nothing. It reads answers as `runs.py` keeps them. Figures of an arm with a failed run
are NaN, and NaN meets no mark (`figures.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from simulations.lab.core import Curve, Point, Setting
from simulations.lab.runs.runs import Answer, Run, Task
from simulations.lab.suites.figures import Check, Figure, Reported

__all__ = ["Arm", "Findings", "Graph", "Line", "Outcome", "Results", "Scale", "Suite", "Table"]

Scale: TypeAlias = Literal["quick", "normal", "full"]
"""quick: only tests that the suite works. normal: minutes to two hours of one core. full: as in algorithms section 10,
where that is more
"""


@dataclass(frozen=True)
class Arm:
    """One setting of one method, in a group of arms that are compared with each other."""

    group: str
    label: str
    task: Task
    seeds: int | None = None
    """most seeds; None for all"""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True)
class Line:
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Graph:
    """One picture: panels side by side with the same kinds of lines."""

    name: str
    """of the file"""
    title: str
    across: str
    up: str
    panels: Mapping[str, Mapping[str, Line]]
    log_x: bool = False
    tall: float = 1.2
    """nats shown above the best, if it is a loss"""


@dataclass(frozen=True)
class Findings:
    tables: Sequence[Table] = ()
    checks: Sequence[Check] = ()
    graphs: Sequence[Graph] = ()
    notes: Sequence[str] = ()
    reported: Sequence[Reported] = ()


@dataclass(frozen=True)
class Outcome:
    """The answers to one arm, one per seed."""

    arm: Arm
    answers: Sequence[Answer]

    @property
    def curves(self) -> list[Curve]:
        """Curves of the seeds that did not fail."""
        return [curve for curve in self._curves if curve is not None]

    @property
    def _curves(self) -> list[Curve | None]:
        task = self.arm.task
        assert isinstance(task, Run)
        return [None if answer.error else task.curve(answer.result, self.arm.label) for answer in self.answers]

    @property
    def failed(self) -> int:
        """Number of seeds that failed."""
        return sum(bool(answer.error) for answer in self.answers)

    @property
    def setting(self) -> Setting:
        task = self.arm.task
        assert isinstance(task, Run)
        return task.setting

    def each(self, of: Callable[[Curve], float]) -> list[float]:
        """One value per seed, NaN for a failed one; empty if all failed."""
        return [math.nan if curve is None else of(curve) for curve in self._curves] if self.curves else []

    def last(self, of: Callable[[Point], float]) -> list[float]:
        return self.each(lambda curve: of(curve.last))

    @property
    def losses(self) -> list[float]:
        """Final loss per seed of the method's model, mostly the mean of the replicas."""
        return self.last(lambda point: point.loss)

    @property
    def replica_losses(self) -> list[float]:
        """Final loss per seed of single replicas."""
        return self.last(lambda point: point.replica_loss)

    @property
    def finished_losses(self) -> list[float]:
        """Final loss per seed of the model that the end of a run leaves. Without an end of its own a method leaves its
        model. NaN for older answers of pairwise, whose end was not measured.
        """
        task = self.arm.task
        assert isinstance(task, Run)
        results = [{} if answer.error else answer.result for answer in self.answers]
        ends = [result.get("facts", {}).get("finished") for result in results]
        models = [math.nan] * len(ends) if task.method == "pairwise" and self.curves else self.losses
        return [loss if end is None else end for end, loss in zip(ends, models, strict=False)]

    @property
    def finished_loss(self) -> Figure:
        return Figure(self.finished_losses)

    @property
    def loss(self) -> Figure:
        return Figure(self.losses)

    @property
    def replica_loss(self) -> Figure:
        return Figure(self.replica_losses)

    @property
    def bytes(self) -> Figure:
        """Bytes received per parameter."""
        return Figure(self.last(lambda point: point.bytes))

    def fact(self, name: str) -> Figure:
        """Mean of one of the method's counts."""
        if self.failed == len(self.answers):
            return Figure([])
        facts = [{} if answer.error else answer.result["facts"] for answer in self.answers]
        return Figure([known.get(name, math.nan) for known in facts])


class Results:
    """Outcomes by group and label, in the order of the arms."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.groups: dict[str, dict[str, Outcome]] = {}
        for outcome in outcomes:
            self.groups.setdefault(outcome.arm.group, {})[outcome.arm.label] = outcome

    def __getitem__(self, key: tuple[str, str]) -> Outcome:
        return self.groups[key[0]][key[1]]

    @property
    def only(self) -> dict[str, Outcome]:
        """The outcomes of the only group."""
        (found,) = self.groups.values()
        return found


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    question: str
    about: str
    """what is played, and where it is smaller than designed"""
    arms: Callable[[Scale], Sequence[Arm]]
    read: Callable[[Results], Findings]
    tried: str = ""
    """what was tried where a mark is missed, with its page"""
