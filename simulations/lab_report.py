"""A suite's findings as a page: what was asked, how, on what, with what result, and which marks were met.

Written by code and never by hand, so that a page says what was measured and nothing else. What a suite finds stands in
`suites`.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simulations.suites.base import Findings, Suite, Table

__all__ = ["About", "commit", "machine", "page"]


@dataclass(frozen=True, kw_only=True)
class About:
    """How a page came to be."""

    command: str
    seeds: int
    scale: str
    commit: str
    machine: str
    runs: int
    hours: float
    """of one core, all runs"""
    older: int = 0
    """runs that earlier code played"""
    failed: Sequence[str] = ()


def commit(root: Path) -> str:
    """Short hash, and whether files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        hash, changed = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain", "--", "*.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{hash}, with changes" if changed else hash


def machine() -> str:
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()}; {versions}"


def page(suite: Suite, findings: Findings, about: About, pictures: Mapping[str, str]) -> str:
    """Markdown. `pictures` are file names by graph."""
    met = sum(check.passed for check in findings.checks)
    lines = [
        f"# {suite.name}: {suite.question}",
        "",
        suite.about,
        "",
        f"    {about.command}",
        "",
        f"Scale {about.scale}; seeds 0 to {about.seeds - 1}, where not told otherwise; {about.runs} runs, "
        f"{_hours(about.hours)} of one core. Commit {about.commit}. {about.machine}.",
        "Figures are means over the seeds, with the lowest and the highest of them in brackets. Seconds are simulated.",
        "",
    ]
    if about.older:
        lines += [f"**{about.older} of the runs were played by earlier code than this commit's.**", ""]
    if about.failed:
        lines += ["Runs that failed, and count nowhere:", "", *(f"- {line}" for line in about.failed), ""]
    if findings.checks:
        rows = [
            (check.name, check.mark, check.measured, "yes" if check.passed else "**no**") for check in findings.checks
        ]
        table = Table(f"Marks: {met} of {len(rows)} met", ("what", "must be", "measured", "met"), rows)
        lines += [*_table(table), ""]
    if findings.reported:
        figures = [(figure.name, figure.measured) for figure in findings.reported]
        lines += [*_table(Table("Without a mark", ("what", "measured"), figures)), ""]
    for note in findings.notes:
        lines += [note, ""]
    for graph in findings.graphs:
        if graph.name in pictures:
            lines += [f"![{graph.title}]({pictures[graph.name]})", ""]
    for table in findings.tables:
        lines += [*_table(table), ""]
    if suite.untried:
        lines += ["Not tried:", "", *(f"- {line}" for line in suite.untried), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"## {table.title}", "", row(table.columns), "|" + "---|" * len(table.columns), *map(row, table.rows)]
    return [*lines, "", table.note] if table.note else lines


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1.0 else f"{60.0 * hours:.0f} minutes" if hours >= 1 / 60 else "seconds"
