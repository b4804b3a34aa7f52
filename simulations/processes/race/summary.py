"""From the files of finished runs to what the page shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.lab.suites.base import Line
from simulations.processes.race.rules import TOGETHER

__all__ = ["Runs", "line_of", "load_runs", "seconds_to", "spread"]

Curve = list[tuple[float, float]]
Runs = dict[tuple[str, str, str], list[dict[str, Any]]]
"""network, condition and contestant -> runs, by repeat"""


def load_runs(folder: Path) -> Runs:
    runs: Runs = {}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        runs.setdefault((run["network"], run["condition"], run["entry"]), []).append(run)
    return runs


def seconds_to(loss: float, curve: Curve) -> float:
    """When the loss is first at `loss` or below; infinity if never."""
    return next((seconds for seconds, value in curve if value <= loss), math.inf)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and range of all repeats. Infinite values count as not reached."""
    reached = [value for value in values if math.isfinite(value)]
    if not reached:
        return "not reached"
    mean = f"{sum(reached) / len(reached):.{digits}f}"
    if len(reached) < len(values):
        return f"{mean} in {len(reached)} of {len(values)}"
    low, high = (f"{each:.{digits}f}" for each in (min(reached), max(reached)))
    return mean if low == high else f"{mean} ({low} to {high})"


def line_of(runs: Sequence[Mapping[str, Any]], step: float) -> Line:
    """Mean and range of the runs' curves, every `step` seconds."""
    curves, length = [run["curve"] for run in runs], min(run["seconds"] for run in runs)
    x, y, low, high = [], [], [], []
    for count in range(1, int(length / step) + 1):
        at = count * step
        values = [value for curve in curves if not math.isnan(value := _at(curve, at))]
        if len(values) == len(curves):
            x.append(at)
            y.append(sum(values) / len(values))
            low.append(min(values))
            high.append(max(values))
    return Line(x, y, low, high)


def _at(curve: Curve, seconds: float) -> float:
    """The loss of the slot that is due at `seconds`, or the last one before."""
    return next((loss for at, loss in reversed(curve) if at <= seconds + TOGETHER), math.nan)
