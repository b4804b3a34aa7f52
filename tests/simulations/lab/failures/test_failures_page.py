"""The table of failures on README.md and docs/performance.md holds the figures of the page that was played."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
METHODS = {"gossipdp": "pairwise", **{name: name for name in ("DiLoCo, quorum", "DiLoCo, waits", "DDP, elastic")}}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_a_page_shows_the_figures_of_the_failures_that_were_played(name: str) -> None:
    page = (ROOT / "simulations/results/failures.md").read_text()
    rows = page.split("| method | nothing goes wrong |")[1].split("\n\n")[0].splitlines()
    played = {row[0]: row[1:] for row in map(cells, rows)}
    shown = (ROOT / name).read_text().split("| 20 % churn |\n")[1].split("\n\n")[0].splitlines()[1:]
    for method, *figures in map(cells, shown):
        for figure, told in zip(figures, played[METHODS[method]], strict=True):
            loss, idle = figure.split(", ")
            assert told.startswith(loss) and told.endswith(f"idle {idle}"), (method, figure, told)
    assert [cells(line)[0] for line in shown] == list(METHODS)
