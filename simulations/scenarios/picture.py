"""Draws a report: graphs over time, shaded events, and the marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.scenarios.findings import Panel, Report

__all__ = ["draw"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
"""a palette that colour-blind readers can tell apart (Okabe and Ito, 2008)"""
INK, FAINT, MET, MISSED = "#222222", "#8a8a8a", "#00734f", "#b3261e"
WIDTH, PANEL, HEAD, LINE = 9.0, 1.75, 0.85, 0.22
"""inches"""


def draw(report: Report, path: Path) -> None:
    """Draw the report as a PNG file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = report.findings
    panels = len(found.panels)
    foot = 0.5 + LINE * (len(found.checks) + bool(report.violation))
    height = HEAD + PANEL * panels + foot
    with pyplot.rc_context({"font.size": 8.5, "text.color": INK, "axes.labelcolor": INK, "font.family": "DejaVu Sans"}):
        figure, rows = pyplot.subplots(panels, 1, figsize=(WIDTH, height), dpi=140, squeeze=False)
        figure.subplots_adjust(
            left=0.07, right=0.975, top=1 - HEAD / height, bottom=(foot + 0.12) / height, hspace=0.48
        )
        figure.text(0.02, 1 - 0.22 / height, report.question, fontsize=14, fontweight="bold", va="center")
        how = report.of
        if report.events:
            how += f": {report.seconds:.0f} virtual seconds, {report.events:,} events"
        figure.text(0.02, 1 - 0.47 / height, how, color=FAINT, va="center")
        axes = [row[0] for row in rows]
        for place, (axis, panel) in enumerate(zip(axes, found.panels, strict=True)):
            _panel(axis, panel, found.spans, first=place == 0)
        for axis, below, panel in zip(axes, axes[1:], found.panels, strict=False):
            if panel.across == found.panels[-1].across:
                below.set_xlim(axis.get_xlim())
                axis.set_xlabel("")
        _foot(figure, report, height)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        pyplot.close(figure)


def _panel(axis: Any, panel: Panel, spans: Sequence[tuple[float, float, str]], *, first: bool) -> None:
    for number, name in enumerate(panel.lines):
        (_bars if panel.bars else _line)(axis, panel, number, name)
    _scales(axis, panel, room=first and bool(spans))
    if panel.mark is not None:
        axis.axhline(panel.mark, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top"}
        axis.annotate("mark", (0.998, panel.mark), color=FAINT, fontsize=7, **place)
    if panel.across == "virtual seconds":
        for begins, until, what in spans:
            axis.axvspan(begins, until, color="#000000", alpha=0.06, linewidth=0)
            if first:
                place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
                axis.annotate(what, ((begins + until) / 2, 0.98), color=FAINT, fontsize=7.5, **place)
    axis.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axis.set_xlabel(panel.across, fontsize=8, color=FAINT)
    _style(axis, columns=len(panel.lines))


def _bars(axis: Any, panel: Panel, number: int, name: str) -> None:
    times, values = panel.lines[name]
    width = 0.8 / len(panel.lines)
    places = [time - 0.4 + (number + 0.5) * width for time in times]
    axis.bar(places, values, width * 0.92, color=COLOURS[number % len(COLOURS)], label=name)
    for place, value in zip(places, values, strict=True):
        axis.annotate(f"{value:.3g}", (place, value), ha="center", va="bottom", color=INK)


def _line(axis: Any, panel: Panel, number: int, name: str) -> None:
    times, values = panel.lines[name]
    shown = [value if not panel.log or value > 0 else math.nan for value in values]
    style: dict[str, Any] = {"drawstyle": "steps-post"} if panel.steps else {}
    if number and panel.steps:  # steps often lie on each other: dashes show the line below
        style["linestyle"] = (0, (2 * number, 2 * number))
    colour = COLOURS[number % len(COLOURS)]
    axis.plot(times, shown, color=colour, linewidth=1.6, label=name, solid_capstyle="round", **style)


def _scales(axis: Any, panel: Panel, *, room: bool) -> None:
    """Limits and ticks. `room`: leave space for the names of events above the lines."""
    if panel.log:
        axis.set_yscale("log")
    elif not panel.bars:
        highest = max((max(values) for _, values in panel.lines.values() if values), default=1.0)
        axis.set_ylim(0, max(highest, panel.mark or 0.0, 1e-9) * (1.22 if room else 1.1))
    if panel.bars:
        axis.set_xticks(range(len(panel.bars)), panel.bars)
        axis.margins(y=0.2)
    elif ends := [max(times) for times, _ in panel.lines.values() if times]:
        axis.set_xlim(0, max(ends))


def _style(axis: Any, *, columns: int) -> None:
    """Legend, frame and grid."""
    if columns > 1:
        axis.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 0.98),
            ncols=columns,
            frameon=False,
            fontsize=8,
            handlelength=1.4,
            columnspacing=1.2,
            borderaxespad=0.1,
        )
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#c8c8c8")
    axis.tick_params(colors=FAINT, labelsize=8, length=2.5)
    axis.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axis.set_axisbelow(True)


def _foot(figure: Any, report: Report, height: float) -> None:
    """The violation and the marks, below the graphs."""
    at = LINE * (len(report.findings.checks) + bool(report.violation)) + 0.02
    if report.violation:
        figure.text(0.02, at / height, f"violated: {report.violation}"[:130], color=MISSED, va="center")
        at -= LINE
    for check in report.findings.checks:
        colour = MET if check.passed else MISSED
        word = "met" if check.passed else "missed"
        figure.text(0.02, at / height, word, color=colour, va="center", fontweight="bold")
        figure.text(0.085, at / height, check.name, va="center")
        figure.text(0.60, at / height, check.mark, color=FAINT, va="center")
        figure.text(0.84, at / height, check.measured, color=colour, va="center")
        at -= LINE
