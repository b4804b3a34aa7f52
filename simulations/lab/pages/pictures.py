"""The graphs of a suite as pictures: a line is the mean of the seeds, a band their range."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulations.lab.suites.base import Graph, Line
from simulations.scenarios.picture import COLOURS, FAINT, INK

__all__ = ["draw"]

MORE: Final = (*COLOURS, "#56B4E9", "#000000", "#8a8a8a")
STYLES: Final = ("solid", (0, (5, 1)), (0, (1, 1)), (0, (5, 1, 1, 1)))
"""of lines 1 to 8, 9 to 16, and so on"""
PANEL, HEIGHT, LETTER = 4.6, 3.6, 0.057
"""inches"""
MARGIN: Final = 1 / 24
"""share of the height left free below the best"""
PALETTE: Final = 96
"""colours of a file"""
DECADE: Final = 10.0
"""smallest ratio of values for a logarithmic axis"""


def draw(graph: Graph, path: Path) -> None:
    """Draw `graph` to `path`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(label for lines in graph.panels.values() for label in lines))
    width = max(PANEL * len(graph.panels), 8.0)
    columns = max(1, min(len(labels), int(width / (0.6 + LETTER * max(map(len, labels), default=1)))))
    foot = 0.6 + 0.2 * math.ceil(len(labels) / columns)
    height = 0.6 + HEIGHT + foot
    with pyplot.rc_context({"font.size": 8.5, "text.color": INK, "axes.labelcolor": INK, "font.family": "DejaVu Sans"}):
        figure, rows = pyplot.subplots(1, len(graph.panels), figsize=(width, height), dpi=120, squeeze=False)
        figure.subplots_adjust(
            left=0.7 / width, right=1 - 0.2 / width, top=1 - 0.7 / height, bottom=foot / height, wspace=0.22
        )
        figure.text(0.15 / width, 1 - 0.25 / height, graph.title, fontsize=13, fontweight="bold", va="center")
        for axis, (title, lines) in zip(rows[0], graph.panels.items(), strict=True):
            _panel(axis, graph, title, lines, labels)
        handles = [
            Line2D([], [], color=MORE[place % len(MORE)], linestyle=STYLES[place // len(MORE) % len(STYLES)])
            for place in range(len(labels))
        ]
        figure.legend(handles, labels, loc="lower left", ncols=columns, frameon=False, fontsize=8, handlelength=2.2)
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(figure, path)
        pyplot.close(figure)


def _save(figure: Any, path: Path) -> None:
    """Save with a palette, which takes a quarter of the bytes. No date and version: equal figures give equal files."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn)
    picture = Image.open(drawn).convert("RGB")
    few = picture.quantize(PALETTE, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path, "PNG", optimize=True)


def _panel(axis: Any, graph: Graph, title: str, lines: Mapping[str, Line], labels: list[str]) -> None:
    heights: list[float] = []
    widths: list[float] = []
    for label, line in lines.items():
        place = labels.index(label)
        colour, style = MORE[place % len(MORE)], STYLES[place // len(MORE) % len(STYLES)]
        shown = [
            spot
            for spot, (x, y) in enumerate(zip(line.x, line.y, strict=True))
            if math.isfinite(x) and math.isfinite(y) and (x > 0 or not graph.log_x)
        ]
        if not shown:
            continue
        x, y = [line.x[spot] for spot in shown], [line.y[spot] for spot in shown]
        heights.extend(y)
        widths.extend(x)
        marker = "o" if len(x) < 12 else ""
        axis.plot(x, y, color=colour, linestyle=style, linewidth=1.5, marker=marker, ms=3)
        if line.low:
            low, high = ([side[spot] for spot in shown] for side in (line.low, line.high))
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if graph.log_x:
        _logarithmic(axis.set_xscale, axis.xaxis, widths)
    if heights:
        # The common start is far above the differences.
        best = min(heights)
        axis.set_ylim(best - MARGIN * graph.tall, min(max(heights), best + graph.tall))
    axis.set_title(title, loc="left", fontsize=9, color=INK)
    axis.set_xlabel(graph.across, fontsize=8, color=FAINT)
    axis.set_ylabel(graph.up, fontsize=8, color=FAINT)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#c8c8c8")
    axis.tick_params(colors=FAINT, labelsize=8, length=2.5)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    axis.set_axisbelow(True)


def _logarithmic(scale: Callable[[str], None], axis: Any, values: Sequence[float]) -> None:
    """Label powers of ten, or 1, 2 and 5 times these on a short axis, so that labels do not overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if not values or max(values) < DECADE * min(values):
        return
    scale("log")
    axis.set_minor_formatter(NullFormatter())
    if max(values) < DECADE**2 * min(values):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
