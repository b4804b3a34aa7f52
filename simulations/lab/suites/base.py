"""What a suite is: arms, each played with every seed, and what is read off them: tables, marks, graphs.

A suite holds no result and plays nothing. Everything here works on answers as `lab_runs` keeps them; the figures of an
arm of which a run failed are NaN, and no mark is met by NaN (`figures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from gossipdp.config import Outer
from simulations.lab.core import Curve, Point, Setting
from simulations.lab.runs.runs import Answer, Run, Task
from simulations.lab.suites.figures import Check, Figure, Reported, check, least, mean, most, reported, told

__all__ = [
    "DAEMON",
    "FORMULA",
    "LOSSES",
    "Arm",
    "Check",
    "Figure",
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
    "best",
    "both",
    "bytes_graph",
    "bytes_table",
    "check",
    "curves_table",
    "distance_graph",
    "graph",
    "in_time",
    "least",
    "mean",
    "most",
    "reported",
    "seconds_graph",
    "sized",
    "started",
    "told",
    "told_outright",
]

Scale: TypeAlias = Literal["quick", "normal", "full"]
"""quick: does it work? normal: minutes to an hour or two of one core. full: as algorithms section 10 has it, where that
is dearer"""


FORMULA: Final = ", by the formula"
"""ends the label of a line that goes on where measuring ends"""
APART: Final = 1e-3
"""share of the largest distance below which none is drawn: equal replicas are apart by what rounding leaves"""

GENERAL: Final[Mapping[str, str]] = {
    "defaults": "other settings, one at a time: of `pairwise` alpha and mu, kappa, bits, fragments, whom to meet, "
    "early exchanges, gamma and clipping, of `epidemic` k, alpha, beta and other compressors; learning rates, H, "
    "Muon: [defaults](defaults.md)",
    "trials": "what the product does not have (a rotation before the codec, outliers sent exactly, averaged momentum, "
    "groups of 4 and 8): [trials](trials.md)",
}
"""what was tried of our methods, by the page it is on"""


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
    tall: float = 1.2
    """nats above the best that are shown, of a loss"""


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
        """Of the seeds that did not fail."""
        return [curve for curve in self._curves if curve is not None]

    @property
    def _curves(self) -> list[Curve | None]:
        task = self.arm.task
        assert isinstance(task, Run)
        return [None if answer.error else task.curve(answer.told, self.arm.label) for answer in self.answers]

    @property
    def failed(self) -> int:
        """Seeds."""
        return sum(bool(answer.error) for answer in self.answers)

    @property
    def setting(self) -> Setting:
        task = self.arm.task
        assert isinstance(task, Run)
        return task.setting

    def each(self, of: Callable[[Curve], float]) -> list[float]:
        """One a seed, NaN of those that failed; nothing if all of them did."""
        return [math.nan if curve is None else of(curve) for curve in self._curves] if self.curves else []

    def last(self, of: Callable[[Point], float]) -> list[float]:
        return self.each(lambda curve: of(curve.last))

    @property
    def losses(self) -> list[float]:
        """Of the method's model: mostly the mean of the replicas, which nobody holds."""
        return self.last(lambda point: point.loss)

    @property
    def replica_losses(self) -> list[float]:
        """Of single replicas."""
        return self.last(lambda point: point.replica_loss)

    @property
    def loss(self) -> Figure:
        return mean(self.losses)

    @property
    def replica_loss(self) -> Figure:
        return mean(self.replica_losses)

    @property
    def bytes(self) -> Figure:
        """Received for each parameter."""
        return mean(self.last(lambda point: point.bytes))

    @property
    def accuracy(self) -> Figure:
        return mean(self.last(lambda point: point.accuracy))

    @property
    def gap(self) -> Figure:
        """How much worse single replicas are than the model."""
        return mean(self.last(lambda point: point.replica_loss - point.loss))

    def fact(self, name: str) -> Figure:
        """Of what the method counted."""
        if self.failed == len(self.answers):
            return mean([])
        facts = [{} if answer.error else answer.told["facts"] for answer in self.answers]
        return mean([known.get(name, math.nan) for known in facts])


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
    tried: str | Sequence[str | tuple[str, str]] = ()
    """what was tried where a mark is missed, and on which page: for every mark, or for those whose names hold the first
    of a pair; for marks in nats of which nothing is said here it is what `GENERAL` says"""

    def attempts(self, mark: str) -> list[str]:
        """What was tried to meet it."""
        said = (self.tried,) if isinstance(self.tried, str) else self.tried
        pairs = [("", one) if isinstance(one, str) else one for one in said]
        found = [line for part, line in pairs if part in mark]
        if not found and "nats" in mark:
            found = [line for page, line in GENERAL.items() if page != self.name]
        return found


# -- arms ----------------------------------------------------------------------------------------------------------

Ways: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""methods and their options, by label"""


DAEMON: Final[Mapping[str, Any]] = {"momentum": Outer().momentum}
"""what runs of pairwise say even where it is the default, so that an answer is not taken for that of another default"""


def told_outright(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options, and of `DAEMON` what they leave to the default."""
    return {**DAEMON, **options} if method.startswith("pairwise") else dict(options)


def arms(
    group: str,
    setting: Setting,
    ways: Ways,
    *,
    problem: str = "byte-mlp",
    data: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    rates: Mapping[str, float] = {},
) -> list[Arm]:
    """All these ways under one setting; but a method that `rates` names trains at so many times its learning rate."""
    found = []
    for label, (method, options) in ways.items():
        rated = replace(setting, lr=setting.lr * rates.get(method, 1.0))
        run = Run(
            setting=rated, problem=problem, data=data or {}, method=method, options=told_outright(method, options)
        )
        found.append(Arm(group, label, run, seeds))
    return found


SHORT_START: Final = 5
"""steps, if it is only to be seen whether it works"""


def sized(setting: Setting, scale: Scale) -> Setting:
    """Small enough to see whether it works, if that is all that is asked."""
    if scale != "quick":
        return setting
    few = min(setting.peers, 8)
    return replace(setting, peers=few, every=5, rounds=min(setting.rounds, 4), warmup=min(setting.warmup, SHORT_START))


def started(options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """A method's options, with a start of its own as short as `sized` has one."""
    if scale != "quick" or "warmup_steps" not in options:
        return dict(options)
    return {**options, "warmup_steps": min(options["warmup_steps"], SHORT_START)}


# -- figures -------------------------------------------------------------------------------------------------------


LOSSES: Final = ("loss", "single replicas")
"""columns of `both`"""


def both(outcome: Outcome) -> tuple[str, str]:
    """Loss of the model and of single replicas: who leaves replicas further apart may have the better mean of them."""
    return told(outcome.losses), told(outcome.replica_losses)


def best(
    outcomes: Mapping[str, Outcome],
    labels: Iterable[str] | None = None,
    of: Callable[[Outcome], float] = lambda outcome: outcome.loss,
) -> str:
    """Label of the least; what is NaN, as with a seed that failed, is so only if all are."""

    def height(label: str) -> tuple[bool, float]:
        value = of(outcomes[label])
        return math.isnan(value), value

    return min(outcomes if labels is None else labels, key=height)


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
    columns = ("method", *LOSSES, "bytes a parameter", "simulated s", "steps", "consensus distance")
    rows = [
        (
            label,
            *both(outcome),
            told(outcome.last(lambda point: point.bytes), 1),
            told(outcome.last(lambda point: point.seconds), 0),
            told(outcome.last(lambda point: point.steps), 0),
            told(outcome.last(lambda point: point.distance)),
        )
        for label, outcome in outcomes.items()
    ]
    return Table(title, columns, rows, note)


def bytes_table(outcomes: Mapping[str, Outcome], budgets: Sequence[float], *, replicas: bool = False) -> Table:
    """Loss by the time so many bytes a parameter have come, between points by a line; nothing past a run's own end.

    Args:
        replicas: of single ones, not of the model.
    """

    def at(curve: Curve, budget: float) -> float:
        spent = [point.bytes for point in curve.points]
        losses = [point.replica_loss if replicas else point.loss for point in curve.points]
        return float(np.interp(budget, spent, losses)) if spent[0] <= budget <= spent[-1] else math.nan

    def cell(outcome: Outcome, budget: float) -> str:
        # A seed that was not so dear has not failed.
        within = not any(math.isnan(at(curve, budget)) for curve in outcome.curves)
        return told(outcome.each(lambda curve: at(curve, budget)) if within else math.nan)

    rows = [(label, *(cell(outcome, budget) for budget in budgets)) for label, outcome in outcomes.items()]
    return Table(
        f"Loss{' of single replicas' if replicas else ''} at equal bytes",
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
    tall: float = Graph.tall,
) -> Graph:
    lines = {
        panel: {label: _line(outcome.curves, x, y) for label, outcome in outcomes.items() if outcome.curves}
        for panel, outcomes in panels.items()
    }
    return Graph(name, title, across, up, lines, log_x, log_y, tall)


def bytes_graph(panels: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    across, up = "bytes received for each parameter", "held-out loss, nats"
    return graph("bytes", "Loss against bytes", across, up, panels, lambda p: p.bytes, lambda p: p.loss, log_x=True)


def seconds_graph(
    panels: Mapping[str, Mapping[str, Outcome]], title: str = "Loss against simulated wall clock"
) -> Graph:
    across, up = "simulated s", "held-out loss, nats"
    return graph("seconds", title, across, up, panels, lambda p: p.seconds, lambda p: p.loss, tall=0.5)


def distance_graph(panels: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    title = f"How far replicas are apart (less than {APART:g} of the largest is not drawn)"
    across, up = "rounds", "consensus distance"
    drawn = graph("distance", title, across, up, panels, lambda p: float(p.round), lambda p: p.distance, log_y=True)
    return replace(drawn, panels={panel: _above(APART, lines) for panel, lines in drawn.panels.items()})


def _above(share: float, lines: Mapping[str, Line]) -> dict[str, Line]:
    """What of the lines is so much of the highest; one all of which is lower is left out."""
    least = share * max((y for line in lines.values() for y in line.y if math.isfinite(y)), default=0.0)
    found: dict[str, Line] = {}
    for label, line in lines.items():
        kept = [place for place, y in enumerate(line.y) if y >= least]
        if kept:
            x, y, low, high = ([side[place] for place in kept] for side in (line.x, line.y, line.low, line.high))
            found[label] = replace(line, x=x, y=y, low=[max(one, least) for one in low], high=high)
    return found


def against(outcomes: Mapping[float, Outcome], of: Callable[[Point], float]) -> Line:
    """A figure at the end of the run, over whatever the keys are; of the seeds that did not fail."""
    found = {x: [of(curve.last) for curve in outcome.curves] for x, outcome in outcomes.items() if outcome.curves}
    return Line(
        list(found),
        [fmean(values) for values in found.values()],
        [min(values) for values in found.values()],
        [max(values) for values in found.values()],
    )
