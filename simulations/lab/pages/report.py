"""A suite's findings as a page: what was asked, how, on what, with what result, and which marks were met.

Written by code and never by hand, so that a page says what was measured and nothing else. What a suite finds stands in
`suites`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulations.lab.suites.base import Check, Findings, Suite, Table

__all__ = ["OVERVIEW", "About", "commit", "overview", "page"]

OVERVIEW: Final = "# What the laboratory found"
"""first line of the table of all pages"""
WORDS: Final[Mapping[str, str]] = {
    "loss": "held-out, nats a byte, of the method's model: mostly the mean of the replicas, which nobody holds",
    "single replicas": "the mean of the losses of four of them: what a peer holds and can use",
    "bytes a parameter": "received by one peer, in the mean over peers, since the start of the run, with what a warm "
    "start costs",
    "consensus distance": "the root of the mean over peers of the squared distance of their parameters from the mean",
    "steps": "optimizer steps of one peer, in the mean over peers",
    "N, H": "peers; optimizer steps of a round, that is between two exchanges",
    "alpha, mu, kappa, gamma": "outer learning rate, outer momentum, the share of an exchange that momentum sees, the "
    "share of a difference that an exchange moves both by (half: they meet)",
    "one exchange a round": "pairwise makes up to three in the first 40 % of a run, and one afterwards, unless this "
    "stands there",
    "cold; its own warm start; after synchronous steps": "from the first step on as ever; after short rounds with "
    "alpha 1 and mu 0, which the daemon has; after steps whose gradients all averaged, which it has not",
    "k": "numbers sent of 4,096 (epidemic, SparseLoCo)",
    "own pace; all as many steps": "fast hosts make more steps in a round; all make as many as the slowest",
    "overlapped": "an all-reduce is averaged into training a round later, and nobody waits for it",
}
"""of tables and pictures, and what they mean"""
CELLS: Final = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, kw_only=True)
class About:
    """How a page came to be."""

    command: str
    seeds: int
    scale: str
    commit: str
    machines: Sequence[str]
    """that the runs were played on"""
    on: str
    """day on which it was written"""
    runs: int
    """each once, however many arms it is of"""
    hours: float
    """of one core, all runs"""
    older: int = 0
    """runs that earlier code played"""
    changed: int = 0
    """runs of which there was other code on disk when all were played"""
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


def page(suite: Suite, findings: Findings, about: About, pictures: Mapping[str, str]) -> str:
    """Markdown. `pictures` are file names by graph."""
    lines = [
        f"# {suite.name}: {suite.question}",
        "",
        suite.about,
        "",
        f"    {about.command}",
        "",
        f"Scale {about.scale}; seeds 0 to {about.seeds - 1}, where not told otherwise; {about.runs} runs, "
        f"{_hours(about.hours)} of one core. Commit {about.commit}, {about.on}. {' and '.join(about.machines)}.",
        "Figures are means over the seeds, with the lowest and the highest of them in brackets, and how many they are "
        "if fewer than three. Seconds are simulated. What the words mean stands in [the overview](README.md#words).",
        "",
    ]
    if about.older:
        lines += [f"**{about.older} of the runs were played by earlier code than this commit's.**", ""]
    if about.changed:
        lines += [f"**The code of {about.changed} of the runs was changed on disk while this was played.**", ""]
    if about.failed:
        lines += ["Runs that failed; no arm of theirs meets a mark:", "", *(f"- {line}" for line in about.failed), ""]
    if findings.checks:
        lines += [*_marks(suite, findings.checks), ""]
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
    return "\n".join(lines).rstrip() + "\n"


def overview(pages: Mapping[str, str]) -> str:
    """Markdown of all pages, by suite: which were played, and every mark as its page has it."""
    played, marks = [], []
    for name, text in pages.items():
        found = _marks_of(text)
        met = sum(cells[-1] == "yes" for cells in found)
        title = text.partition("\n")[0].partition(": ")[2]
        how = re.search(r"^Scale (.*?, where .*?; \d+ runs).*? Commit (.*?)\. ", text, re.MULTILINE)
        scale, commit_ = how.groups() if how else ("-", "-")
        scale = scale.replace(", where not told otherwise", "")
        played.append((f"[{name}]({name}.md)", title, f"{met} of {len(found)}" if found else "none", scale, commit_))
        marks += [(name, *cells[:-1], cells[-1].partition(";")[0]) for cells in found]
    said = "Written with every page, from the pages; what was tried where a mark is missed stands there."
    tables = [
        Table("Pages", ("page", "question", "marks met", "played", "commit"), played),
        Table("Marks", ("page", "what", "must be", "measured", "met"), marks),
        Table("Words", ("word", "what it means"), list(WORDS.items())),
    ]
    lines = [OVERVIEW, "", said, ""]
    for table in tables:
        lines += [*_table(table), ""] if table.rows else []
    return "\n".join(lines).rstrip() + "\n"


def _marks_of(text: str) -> list[list[str]]:
    """Cells of the table of marks of a page: what, must be, measured, met."""
    _, _, below = text.partition("\n## Marks: ")
    lines = below.partition("\n## ")[0].splitlines()
    rows = [CELLS.split(line)[1:-1] for line in lines if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows[1:]]


def _marks(suite: Suite, checks: Sequence[Check]) -> list[str]:
    """Beside each that is missed, the numbers of the lines below that say what was tried to meet it."""
    lines: list[str] = []
    rows = []
    for check in checks:
        tried = [] if check.passed else suite.attempts(check.name)
        lines += [line for line in tried if line not in lines]
        numbers = ", ".join(str(1 + lines.index(line)) for line in tried)
        missed = f"**no**; tried: {numbers}" if tried else "**no**; nothing else was tried"
        rows.append((check.name, check.mark, check.measured, "yes" if check.passed else missed))
    met = sum(check.passed for check in checks)
    table = _table(Table(f"Marks: {met} of {len(rows)} met", ("what", "must be", "measured", "met"), rows))
    below = ["", "Tried, where marks are missed:", "", *(f"{number}. {line}" for number, line in enumerate(lines, 1))]
    return table + below if lines else table


def _table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"## {table.title}", "", row(table.columns), "|" + "---|" * len(table.columns), *map(row, table.rows)]
    return [*lines, "", table.note] if table.note else lines


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1.0 else f"{60.0 * hours:.0f} minutes" if hours >= 1 / 60 else "seconds"
