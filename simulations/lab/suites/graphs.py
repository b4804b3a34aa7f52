"""Graphs of outcomes: a line is a method, and its band the range of the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

import numpy as np

from simulations.lab.core import Curve, Point
from simulations.lab.suites.base import Graph, Line, Outcome

__all__ = ["bytes_graph", "distance_graph", "end_line", "graph", "seconds_graph"]

APART: Final = 1e-3
"""share of the largest distance below which nothing is drawn, because rounding alone separates equal replicas"""


def _line(curves: Sequence[Curve], x: Callable[[Point], float], y: Callable[[Point], float]) -> Line:
    """Mean, lowest and highest of the seeds, point by point."""
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
    """The parts of lines that lie above `share` of the highest value. A line without such a part is left out."""
    least = share * max((y for line in lines.values() for y in line.y if math.isfinite(y)), default=0.0)
    found: dict[str, Line] = {}
    for label, line in lines.items():
        kept = [place for place, y in enumerate(line.y) if y >= least]
        if kept:
            x, y, low, high = ([side[place] for place in kept] for side in (line.x, line.y, line.low, line.high))
            found[label] = replace(line, x=x, y=y, low=[max(one, least) for one in low], high=high)
    return found


def end_line(outcomes: Mapping[float, Outcome], of: Callable[[Point], float]) -> Line:
    """A figure at the end of the run over the keys of `outcomes`, from the seeds that did not fail."""
    found = {x: [of(curve.last) for curve in outcome.curves] for x, outcome in outcomes.items() if outcome.curves}
    return Line(
        list(found),
        [fmean(values) for values in found.values()],
        [min(values) for values in found.values()],
        [max(values) for values in found.values()],
    )
