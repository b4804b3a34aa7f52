"""The page `simulations/results/optimizers.md`: a row for each optimizer, and what does not work with the reason."""

from __future__ import annotations

import math
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from simulations.optimizers.catalogue import LIBRARIES, installed
from simulations.optimizers.running import Played
from simulations.optimizers.trial import (
    APART,
    EARLY,
    EVERY,
    GRID,
    JOINS,
    LEARNT,
    MARGIN,
    RESTARTS,
    STEP_TIME,
    STEPS,
    WARMUP,
    WORDS,
    Row,
    verdict,
)

__all__ = ["PAGE", "page", "versions", "without_row", "words"]

PAGE: Final = Path(__file__).resolve().parents[1] / "results" / "optimizers.md"
POINT: Final = "GD-327"
UNPLAYED: Final = "not played yet"


def page(played: Sequence[Played], unplayed: Sequence[str], command: str) -> str:
    """The page in Markdown.

    Args:
        unplayed: optimizers that have no row yet.
    """
    rows = [each.row for each in played]
    counts = Counter(map(verdict, rows))
    share, nats = MARGIN
    lines = [
        "# Optimizers of today",
        "",
        f"Each optimizer trains a network on handwritten digits, alone and together. {len(rows)} optimizers: "
        + ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
        + ".",
        "",
        *([f"**Incomplete**: {len(unplayed)} more are {UNPLAYED}. The command plays them.", ""] if unplayed else []),
        f"    {command}",
        "",
        f"{sum(each.seconds for each in played) / 60:.0f} minutes of one core. "
        f"Commit {' and '.join(dict.fromkeys(each.commit for each in played))}, {date.today().isoformat()}. "
        f"Python {platform.python_version()}, {platform.machine()}, on a CPU.",
        "",
        "* **Hosts**: simulated daemons in virtual time, with real `gossipdp.attach`, hooks, link and shared memory "
        "(`simulations/simulator/attached.py`).",
        f"* **Problem**: 2,368 parameters in two matrices, for torchao 4,736. Batches of 16, {STEPS} steps a host. "
        "Losses are held-out cross-entropy in nats. At the start it is 2.3.",
        f"* **Rate**: the lowest of {', '.join(f'{lr:g}' for lr in GRID)} that is as good as the best for one host "
        "alone. Together has the same. A run that is worse tries a third of it, then a plain average.",
        f"* **Settings**: the defaults, but rounds of {EVERY} steps of {STEP_TIME:g} s, a warm start of {WARMUP}, and "
        f"early rounds until step {EARLY}.",
        "* **Alone**: mean of two hosts. **Together**: the first host. **Mean**: the mean of the first two hosts' "
        "weights.",
        f"* **Restored**: the second host. Its training process is made anew after {RESTARTS} steps, from a saved "
        "state.",
        f"* **Joiner**: a third host, which joins after {JOINS} steps with a new model and a new optimizer.",
        "* **Apart**: distance between the first two hosts' weights at the end, as a share of that alone. An optimizer "
        f"above {APART:g} *learns little from others*.",
        "* **Saved**: what `peer.save` and `peer.load` give. *exact*: the next steps are those of an uninterrupted "
        "run. *own*: gossipdp refuses the state, and the optimizer's own `state_dict` is used.",
        f"* *Not judged*: its steps fail here, or its loss alone stays above {LEARNT:g}.",
        f"* A loss is *as good* if it is above the other by at most {share:.0%} and {nats:g} nats. *Works*: the other "
        "four losses are as good as alone.",
        "",
    ]
    for library in LIBRARIES:
        found = [row for row in rows if row.key.startswith(f"{library}.")]
        lines += [f"## {library} {installed(library) or 'was not installed'}", ""]
        lines += [*_table(found), ""] if found else []
    lines += _reasons(rows)
    if unplayed:
        lines.append(f"* **{UNPLAYED}**: {', '.join(f'`{key}`' for key in unplayed)}.")
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| optimizer | rate | alone | together | mean | restored | joiner | apart | saved | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        losses = (row.alone, row.together, row.mean, row.restored, row.joiner)
        rate = "" if row.lr is None else f"{row.lr:g}"
        cells = [row.key.partition(".")[2], rate, *map(_figure, losses), _figure(row.apart, 2), row.saves]
        lines.append(f"| {' | '.join(cells)} | {verdict(row)} |")
    return lines


def _figure(value: float, digits: int = 3) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}" if abs(value) < 1e3 else f"{value:.0e}"


def _reasons(rows: Sequence[Row]) -> list[str]:
    lines = ["## What needs more than two lines, and what does not work", ""]
    for word in WORDS[1:]:
        of_word: dict[str, list[str]] = {}
        for row in rows:
            if verdict(row) == word:
                reason = row.broken or row.refused or row.setting
                if word == "not judged" and not row.broken:
                    reason = f"its loss alone stays above {LEARNT:g}"
                of_word.setdefault(reason, []).append(row.key)
        for reason, keys in of_word.items():
            said = f": {reason}" if reason else ""
            lines.append(f"* **{word}**{said}: {', '.join(f'`{key}`' for key in keys)}.")
    named = [f"`{row.key}`" for row in rows if POINT in row.told]
    if named:
        lines.append(f"* `attach` names it ([GD-327](../../docs/errors.md#gd-327)): {', '.join(named)}.")
    return lines


def words(text: str) -> dict[str, str]:
    """The verdicts of a page, by library and name."""
    found, library = dict[str, str](), ""
    for line in text.splitlines():
        if heading := re.match(r"## (\w+) ", line):
            library = heading[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 10 and cells[0] != "optimizer":
            found[f"{library}.{cells[0]}"] = cells[-1]
    return found


def without_row(text: str) -> set[str]:
    """The optimizers that a page says are not played yet."""
    listed = re.search(rf"^\* \*\*{UNPLAYED}\*\*: (.*)", text, re.M)
    return set(re.findall(r"`([\w.]+)`", listed[1])) if listed else set()


def versions(text: str) -> Mapping[str, str]:
    """The versions of the libraries that a page is of."""
    return {name: version for name, version in re.findall(r"^## (\w+) ([\w.+]+)$", text, re.M) if name in LIBRARIES}
