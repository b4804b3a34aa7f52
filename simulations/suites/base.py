"""What a suite is: arms, each played with every seed, and what is read off them: tables, marks, graphs.

A suite holds no result and plays nothing. Everything here works on answers as `lab_runs` keeps them; a run that failed
leaves its arm without a curve of that seed, an arm without any has NaN for all its figures, and no mark is met by NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from simulations.lab import Curve, Point, Setting
from simulations.lab_runs import Answer, Run, Task
from simulations.scenarios.base import Check

__all__ = [
    "FORMULA",
    "Arm",
    "Check",
    "Findings",
    "Graph",
    "Line",
    "Outcome",
    "Reported",
    "Results",
    "Scale",
    "Suite",
    "Table",
    "Ways",
    "against",
    "arms",
    "bytes_graph",
    "bytes_table",
    "check",
    "curves_table",
    "distance_graph",
    "graph",
    "in_time",
    "mean",
    "reported",
    "seconds_graph",
    "sized",
    "told",
]

Scale: TypeAlias = Literal["quick", "normal", "full"]
"""quick: does it work? normal: minutes to an hour or two of one core. full: as algorithms section 10 has it, where that
is dearer"""


FORMULA: Final = ", by the formula"
"""ends the label of a line that goes on where measuring ends"""


@dataclass(frozen=True)
class Arm:
    """One setting of one method, in one group of arms that are compared with each other."""

    group: str
    label: str
    task: Task
    seeds: int | None = None
    """at most so many"""


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
    dashed: bool = False
    """not measured, but by a formula"""


@dataclass(frozen=True)
class Graph:
    """One picture: panels side by side, each with the same kinds of lines."""

    name: str
    """of the file"""
    title: str
    across: str
    up: str
    panels: Mapping[str, Mapping[str, Line]]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Reported:
    """A figure that has no mark, and so is neither met nor missed."""

    name: str
    measured: str


@dataclass(frozen=True)
class Findings:
    tables: Sequence[Table] = ()
    checks: Sequence[Check] = ()
    graphs: Sequence[Graph] = ()
    notes: Sequence[str] = ()
    reported: Sequence[Reported] = ()


@dataclass(frozen=True)
class Outcome:
    """Answers to one arm, one a seed."""

    arm: Arm
    answers: Sequence[Answer]

    @property
    def curves(self) -> list[Curve]:
        task = self.arm.task
        assert isinstance(task, Run)
        return [task.curve(answer.told, self.arm.label) for answer in self.answers if not answer.error]

    @property
    def setting(self) -> Setting:
        task = self.arm.task
        assert isinstance(task, Run)
        return task.setting

    def each(self, of: Callable[[Curve], float]) -> list[float]:
        return [of(curve) for curve in self.curves]

    def last(self, of: Callable[[Point], float]) -> list[float]:
        return self.each(lambda curve: of(curve.last))

    @property
    def losses(self) -> list[float]:
        return self.last(lambda point: point.loss)

    @property
    def loss(self) -> float:
        """Mean of the seeds."""
        return mean(self.losses)

    @property
    def bytes(self) -> float:
        """Received for each parameter."""
        return mean(self.last(lambda point: point.bytes))

    @property
    def accuracy(self) -> float:
        return mean(self.last(lambda point: point.accuracy))

    @property
    def gap(self) -> float:
        """How much worse single replicas are than the model, mean of the seeds."""
        return mean(self.last(lambda point: point.replica_loss - point.loss))

    def fact(self, name: str) -> float:
        """Of what the method counted, mean of the seeds."""
        return mean([answer.told["facts"].get(name, math.nan) for answer in self.answers if not answer.error])


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
        """Of the one group there is."""
        (found,) = self.groups.values()
        return found


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    question: str
    about: str
    """what is played, and where it is smaller than what was designed"""
    arms: Callable[[Scale], Sequence[Arm]]
    read: Callable[[Results], Findings]
    untried: Sequence[str] = field(default=())
    """what might have been tried and was not"""


# -- arms ----------------------------------------------------------------------------------------------------------

Ways: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""methods and their options, by label"""


def arms(
    group: str,
    setting: Setting,
    ways: Ways,
    *,
    problem: str = "byte-mlp",
    data: Mapping[str, Any] | None = None,
    seeds: int | None = None,
) -> list[Arm]:
    """All these ways under one setting."""
    return [
        Arm(
            group,
            label,
            Run(setting=setting, problem=problem, data=data or {}, method=method, options=options),
            seeds,
        )
        for label, (method, options) in ways.items()
    ]


def sized(setting: Setting, scale: Scale) -> Setting:
    """Small enough to see whether it works, if that is all that is asked."""
    if scale != "quick":
        return setting
    few = min(setting.peers, 8)
    return replace(setting, peers=few, every=5, rounds=min(setting.rounds, 4), warmup=min(setting.warmup, 5))


# -- figures -------------------------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def told(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and from where to where the seeds went."""
    if not values:
        return "failed"
    if any(map(math.isnan, values)):
        return _number(math.nan, digits)
    if max(values) == min(values):
        return _number(values[0], digits)
    return f"{_number(fmean(values), digits)} ({_number(min(values), digits)} to {_number(max(values), digits)})"


def _number(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return {math.inf: "never", -math.inf: "-inf"}.get(value, "-")
    return f"{value:,.{digits}f}" if abs(value) < 10_000 else f"{value:,.0f}"


def check(name: str, must: str, measured: float, passed: bool, unit: str = "", digits: int = 3) -> Check:
    """A mark; one that was not measured is not met."""
    return Check(name, must, f"{_number(measured, digits)}{unit}", bool(passed) and not math.isnan(measured))


def reported(name: str, measured: float, unit: str = "", digits: int = 3) -> Reported:
    return Reported(name, f"{_number(measured, digits)}{unit}")


def in_time(outcomes: Mapping[str, Outcome], clock: str) -> dict[str, Outcome]:
    """Those that ended no later than the one of label `clock`, who waits for nobody: a round may last longer than all
    the time there is."""
    limit = 1.02 * mean(outcomes[clock].last(lambda point: point.seconds))
    return {
        label: outcome
        for label, outcome in outcomes.items()
        if not mean(outcome.last(lambda point: point.seconds)) > limit
    }


def curves_table(title: str, outcomes: Mapping[str, Outcome], note: str = "") -> Table:
    columns = ("method", "loss", "single replicas", "bytes a parameter", "simulated s", "steps", "consensus distance")
    rows = [
        (
            label,
            told(outcome.losses),
            told(outcome.last(lambda point: point.replica_loss)),
            told(outcome.last(lambda point: point.bytes), 1),
            told(outcome.last(lambda point: point.seconds), 0),
            told(outcome.last(lambda point: point.steps), 0),
            told(outcome.last(lambda point: point.distance)),
        )
        for label, outcome in outcomes.items()
    ]
    return Table(title, columns, rows, note)


def bytes_table(outcomes: Mapping[str, Outcome], budgets: Sequence[float]) -> Table:
    """Loss by the time so many bytes a parameter have come, between points by a line; nothing past a run's own end."""

    def at(curve: Curve, budget: float) -> float:
        spent = [point.bytes for point in curve.points]
        found = np.interp(budget, spent, [point.loss for point in curve.points])
        return float(found) if spent[0] <= budget <= spent[-1] else math.nan

    rows = [
        (label, *(told([at(curve, budget) for curve in outcome.curves]) for budget in budgets))
        for label, outcome in outcomes.items()
    ]
    return Table(
        "Loss at equal bytes",
        ("method", *(f"{budget:g} B a parameter" for budget in budgets)),
        rows,
        "On the way, at learning rates that have not fallen yet: a run that were to end there would do better. What a "
        "method reaches at the end of its run stands in the other tables.",
    )


def _line(curves: Sequence[Curve], x: Callable[[Point], float], y: Callable[[Point], float]) -> Line:
    """Point by point over the seeds."""
    at = list(zip(*(curve.points for curve in curves), strict=True))
    heights = np.array([[y(point) for point in points] for points in at])
    across = [fmean(x(point) for point in points) for points in at]
    return Line(across, heights.mean(1).tolist(), heights.min(1).tolist(), heights.max(1).tolist())


def graph(
    name: str,
    title: str,
    across: str,
    up: str,
    panels: Mapping[str, Mapping[str, Outcome]],
    x: Callable[[Point], float],
    y: Callable[[Point], float],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Graph:
    lines = {
        panel: {label: _line(outcome.curves, x, y) for label, outcome in outcomes.items() if outcome.curves}
        for panel, outcomes in panels.items()
    }
    return Graph(name, title, across, up, lines, log_x, log_y)


def bytes_graph(panels: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    across, up = "bytes received for each parameter", "held-out loss, nats"
    return graph("bytes", "Loss against bytes", across, up, panels, lambda p: p.bytes, lambda p: p.loss, log_x=True)


def seconds_graph(
    panels: Mapping[str, Mapping[str, Outcome]], title: str = "Loss against simulated wall clock"
) -> Graph:
    return graph("seconds", title, "simulated s", "held-out loss, nats", panels, lambda p: p.seconds, lambda p: p.loss)


def distance_graph(panels: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    title, across, up = "How far replicas are apart", "rounds", "consensus distance"
    return graph("distance", title, across, up, panels, lambda p: float(p.round), lambda p: p.distance, log_y=True)


def against(outcomes: Mapping[float, Outcome], of: Callable[[Point], float]) -> Line:
    """A figure at the end of the run, over whatever the keys are."""
    found = {x: outcome.last(of) for x, outcome in outcomes.items() if outcome.curves}
    return Line(
        list(found),
        [fmean(values) for values in found.values()],
        [min(values) for values in found.values()],
        [max(values) for values in found.values()],
    )
