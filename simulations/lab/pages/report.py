"""The page of a suite: question, method, conditions, results, and marks met and missed.

Pages are generated and never edited by hand. What a suite finds is decided in `suites`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulations.lab.suites.base import Findings, Suite, Table
from simulations.lab.suites.figures import Check

__all__ = ["OVERVIEW", "About", "brief", "commit", "overview", "page"]

OVERVIEW: Final = "# What the laboratory found"
"""first line of the overview"""
WORDS: Final[Mapping[str, str]] = {
    "loss": "held-out, in nats per byte; mostly of the mean of the replicas, which no peer holds",
    "single replicas": "the mean loss of four of them; a peer holds and uses one",
    "bytes a parameter": "received since the start of the run, warm start included; mean over peers",
    "consensus distance": "root mean square, over peers, of the distance from the mean parameters",
    "steps": "optimizer steps of a peer, mean over peers",
    "N, H": "peers; optimizer steps in a round",
    "alpha, mu": "outer learning rate; outer momentum",
    "kappa": "the share of an exchange that the outer momentum sees",
    "gamma": "the share of a difference by which an exchange moves each side; at one half they meet",
    "cold": "full rounds from the first step on",
    "its own warm start": "begins with short rounds at alpha 1 and mu 0, as the daemon does",
    "own pace": "fast hosts make more steps per round",
    "all as many steps": "every host makes as many steps as the slowest",
    "overlapped": "the result of an all-reduce lands one round later, and no peer waits for it",
}
"""terms of tables and pictures, with their meaning"""
ONE_SEED: Final = " (1 seed)"
CELLS: Final = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, kw_only=True)
class About:
    """How a page was made."""

    command: str
    seeds: int
    scale: str
    commit: str
    machines: Sequence[str]
    """machines that played the runs"""
    on: str
    """day of writing"""
    runs: int
    """distinct runs"""
    hours: float
    """hours of one core for all runs"""
    older: int = 0
    """runs played by earlier code"""
    changed: int = 0
    """runs whose code changed on disk while the suite played"""
    failed: Sequence[str] = ()


def commit(root: Path) -> str:
    """Short hash of HEAD, and whether Python files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        hash, changed = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain", "--", "*.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{hash}, with changes" if changed else hash


def page(suite: Suite, findings: Findings, about: About, pictures: Mapping[str, str]) -> str:
    """The page in Markdown. `pictures` are file names by graph."""
    lines = [
        f"# {suite.name}: {suite.question}",
        "",
        suite.about,
        "",
        f"    {about.command}",
        "",
        f"Scale {about.scale}; seeds 0 to {about.seeds - 1} unless stated; {about.runs} runs, "
        f"{_hours(about.hours)} of one core. Commit {about.commit}, {about.on}. {' and '.join(about.machines)}.",
        "Figures are means over the seeds. Brackets show the lowest and the highest, and the number of seeds if fewer "
        "than three. Seconds are simulated. [The overview](README.md#words) explains the words.",
        "",
    ]
    if about.older:
        lines += [f"**{about.older} of the runs were played by earlier code than this commit's.**", ""]
    if about.changed:
        lines += [f"**The code of {about.changed} of the runs changed on disk while the suite played.**", ""]
    if about.failed:
        lines += ["Failed runs (their arms meet no mark):", "", *(f"- {line}" for line in about.failed), ""]
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


def overview(pages: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The overview of all pages in Markdown: how each was played, and the marks that it missed.

    Args:
        pages: texts of the suites' pages by name.
        others: texts of other pages, which are listed.
    """
    played, missed = [], []
    for name, text in pages.items():
        found = _marks_of(text)
        met = sum(cells[-1] == "yes" for cells in found)
        title = text.partition("\n")[0].partition(": ")[2]
        how = re.search(r"^Scale (.*? unless stated; \d+ runs).*? Commit (.*?)\. ", text, re.MULTILINE)
        scale, commit_ = how.groups() if how else ("-", "-")
        scale = scale.replace(" unless stated", "")
        played.append((f"[{name}]({name}.md)", title, f"{met} of {len(found)}" if found else "none", scale, commit_))
        missed += [(name, *cells[:-1]) for cells in found if cells[-1] != "yes"]
    said = (
        "Generated from the pages. A page has all marks of its suite, and says what was tried where a mark is missed."
    )
    tables = [
        Table("Pages", ("page", "question", "marks met", "played", "commit"), played),
        Table("Marks missed", ("page", "what", "must be", "measured"), missed),
        Table("Other pages", ("page", "of"), [(f"[{name}]({name}.md)", _title(text)) for name, text in others.items()]),
        Table("Words", ("word", "what it means"), list(WORDS.items())),
    ]
    lines = [OVERVIEW, "", said, ""]
    for table in tables:
        lines += [*_table(table), ""] if table.rows else []
    return "\n".join(lines).rstrip() + "\n"


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _marks_of(text: str) -> list[list[str]]:
    """Cells of the table of marks of a page: what, must be, measured, met."""
    _, _, below = text.partition("\n## Marks: ")
    lines = below.partition("\n## ")[0].splitlines()
    rows = [CELLS.split(line)[1:-1] for line in lines if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows[1:]]


def _marks(suite: Suite, checks: Sequence[Check]) -> list[str]:
    """The table of marks, and what was tried where one is missed."""
    rows = [(check.name, check.mark, check.measured, "yes" if check.passed else "**no**") for check in checks]
    met = sum(check.passed for check in checks)
    table = _table(Table(f"Marks: {met} of {len(rows)} met", ("what", "must be", "measured", "met"), rows))
    return table + (["", f"Tried, where marks are missed: {suite.tried}."] if met < len(rows) and suite.tried else [])


def _table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [row(brief(cells)) for cells in table.rows]
    lines = [f"## {table.title}", "", row(table.columns), "|" + "---|" * len(table.columns), *rows]
    return [*lines, "", table.note] if table.note else lines


def brief(cells: Sequence[str]) -> Sequence[str]:
    """The cells of a row. Its name says that all its figures have one seed, if they have."""
    if sum(cell.endswith(ONE_SEED) for cell in cells) < 2 or any(" to " in cell for cell in cells[1:]):
        return cells
    return (cells[0] + ONE_SEED, *(cell.removesuffix(ONE_SEED) for cell in cells[1:]))


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1.0 else f"{60.0 * hours:.0f} minutes" if hours >= 1 / 60 else "seconds"
