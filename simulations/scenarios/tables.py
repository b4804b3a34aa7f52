"""Prints a report as a table of at most 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulations.scenarios.findings import Report

__all__ = ["print_report"]

WIDTH = 80


def print_report(report: Report, picture: str, replay: str, console: Console | None = None) -> None:
    """Print the report.

    Args:
        picture: path of the picture, or an empty string.
        replay: the command that plays the run again.
    """
    console = console or Console(highlight=False, soft_wrap=False)
    width = min(WIDTH, console.width)
    found = report.findings
    console.print(Text(report.question, "bold"), width=width)
    console.print(Text(report.of, "dim"), width=width)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(found.columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in found.rows:
        table.add_row(*map(Text, row))
    console.print(table, width=width)
    if found.checks:
        console.print()
        console.print(_marks(report), width=width)
    console.print()
    if report.violation:
        console.print(Text(f"VIOLATED: {report.violation}", "bold red"), width=width)
    held = "" if report.violation else "; every invariant held" if report.plan is not None else ""
    rate = report.events / report.wall if report.wall else 0.0
    pace = f"{report.seconds:.0f} virtual seconds in {report.wall:.1f} s, {report.events:,} events, {rate:,.0f}/s"
    console.print(f"{pace if report.events else f'{report.wall:.1f} s'}{held}", width=width)
    if picture:
        console.print(f"picture: {picture}", soft_wrap=True)
    if not report.passed:
        console.print(f"replay: {replay}", soft_wrap=True)


def _marks(report: Report) -> Table:
    marks = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    marks.add_column("")
    marks.add_column("what must hold", ratio=1)
    marks.add_column("mark")
    marks.add_column("measured", justify="right")
    for check in report.findings.checks:
        style = "green" if check.passed else "bold red"
        word = Text("met" if check.passed else "MISSED", style)
        marks.add_row(word, Text(check.name), Text(check.mark, "dim"), Text(check.measured, style))
    return marks
