"""Graphs of outcomes: a line is a method, and its band the range of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from simulations.lab.core import Curve, Point
from simulations.lab.suites.base import Graph, Line, Outcome

__all__ = ["bytes_graph", "seconds_graph"]

LOSS = "held-out loss, nats"


def bytes_graph(panels: Mapping[str, Mapping[str, Outcome]]) -> Graph:
    lines = _lines(panels, lambda point: point.bytes)
    return Graph("bytes", "Loss against bytes", "bytes received for each parameter", LOSS, lines, log_x=True)


def seconds_graph(
    panels: Mapping[str, Mapping[str, Outcome]], title: str = "Loss against simulated wall clock"
) -> Graph:
    return Graph("seconds", title, "simulated s", LOSS, _lines(panels, lambda point: point.seconds), tall=0.5)


def _lines(panels: Mapping[str, Mapping[str, Outcome]], across: Callable[[Point], float]) -> dict[str, dict[str, Line]]:
    return {
        panel: {label: _line(outcome.curves, across) for label, outcome in outcomes.items() if outcome.curves}
        for panel, outcomes in panels.items()
    }


def _line(curves: Sequence[Curve], across: Callable[[Point], float]) -> Line:
    """Mean, lowest and highest loss of the seeds, point by point."""
    at = list(zip(*(curve.points for curve in curves), strict=True))
    heights = np.array([[point.loss for point in points] for points in at])
    where = [fmean(across(point) for point in points) for points in at]
    return Line(where, heights.mean(1).tolist(), heights.min(1).tolist(), heights.max(1).tolist())
