"""The page of the race: a table for each network and condition, and a picture for each network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.lab.pages.pictures import draw
from simulations.lab.suites.base import Graph
from simulations.processes.race.entries import ALPHA, CONTESTANTS, delay_of
from simulations.processes.race.rules import CONDITIONS, NETWORKS, QUICK, RULES, SCALE, Condition, Network
from simulations.processes.race.summary import Runs, line_of, load_runs, seconds_to, spread

__all__ = ["GOAL", "SWEPT", "short_table", "sweep_tables", "write_page"]

GOAL = 2.5
"""held-out nats a byte"""
MEGABYTE = 1e6
SWEPT = "sweep"
"""folder of the sweep's runs, in that of the race's"""
TEXT = f"""\
# The race: real processes on slow links

gossipdp, DDP, local SGD, DiLoCo and hivemind train the same model side by side, each on four hosts of its own. Hosts
are network namespaces, with real daemons, real training processes and the kernel's TCP. `make race` as root plays it.

    {{command}}

{{about}}

## What is raced

* **Model.** `byte_gpt` of 0.246 million parameters, on the sources of the standard library. AdamW, {RULES.warmup} steps
  of warm-up, then a constant rate of {RULES.lr:g}. So no contestant has to know the length of the run. A step has
  {RULES.batch} windows of {RULES.context} bytes. With so few, the data of four hosts are worth more than those of
  one.
* **Links.** Four hosts and their contestants share two cores, so the model is small. The links are slower by a factor
  of {SCALE:g}, so that bytes, rate and step time have the ratio of 10 million parameters with steps of {RULES.step:g} s
  on the named link, or of 100 million with steps of 1 s. Round trips are not scaled.
* **Steps.** A step lasts at least {RULES.step:g} s, as on a GPU: training sleeps for most of it. Communication may hide
  behind the time of one step in full. The host that trains alone shows whether the cores were enough.
* **Clock.** It starts when all hosts are ready to train; set-up runs on cables without a limit. Losses are computed
  from snapshots after the run. All contestants of a heat start together, on networks of their own.
* **Slow host.** It sleeps until a step has lasted four times as long. Time-outs of the groups outlast a wait for it.
* **Loss of power.** After a third of the run all processes of a host get SIGKILL and its cable is cut. A Gloo group
  waits until its time-out of {CONDITIONS[2].timeout:g} s (torch's default is 30 minutes) and fails. It is started again
  with three members from the last checkpoint, which costs no transfer.
  The interpreters of the restart wait beforehand, because two cores would start nine of them slowly.
  torchrun's own rendezvous, 30 s by default, is not played. gossipdp runs on unattended.

| contestant | settings |
|---|---|
| gossipdp | defaults: `gossipdp up`, `gossipdp join`, and `attach` in the script |
| DDP, fp16 | default buckets and torch's `fp16_compress_hook` |
| local SGD | torch's `PeriodicModelAverager`, every 16 steps (Lin et al. 2018) or as its name says |
| DiLoCo | fp32, every H steps, Nesterov at 0.7 and 0.9 (Douillard et al. 2023) |
| DiLoCo, torchft | every 50 steps; lighthouse and manager as torchft's documentation advises; {{torchft}} |
| torchft streaming | the same with two fragments, each every H steps; alpha {ALPHA:g}, outer momentum mu; {{delays}} |
| hivemind | `DecentralizedAverager` in fp16 beside training, every N steps at most, N as named; {{hivemind}} |
| one host alone | nothing is sent, and no condition touches it |

## In short

Loss at the end, and the longest pause of a healthy host in all runs. [Below](#results) is what each means.

{{short}}

## Results

Mean of the repeats, and their range. Losses are held out, in nats a byte. The *loss* of a run is that of the mean of
its healthy hosts' parameters, at the end: what one more averaging would leave. A *single*
model is a host's own at that time. *Seconds* are those until the loss is at most {GOAL:g}. *Pause* is the longest time
between two steps of a healthy host. *Sent* is what its interface counted in the run, a mean over the healthy hosts.
After the clock `gossipdp finish` ends the run of gossipdp. Below a table is the loss of the model that it leaves.
"""
SWEEP = """
## Sweep

`python -m simulations.processes.race --sweep`: the rivals with several settings of their own options, on equal hosts,
with a seed that no race has. From these tables the settings that race were chosen. gossipdp is not swept: it has its
defaults.

"""


def write_page(runs: Path, folder: Path) -> Path:
    """Write `race.md` and its pictures from the runs in `runs`.

    Raises:
        ValueError: there are no runs.
    """
    kept = load_runs(runs)
    if not kept:
        raise ValueError(f"no runs in {runs}")
    every = [run for group in kept.values() for run in group]
    quick = any(run["quick"] for run in every)
    command = "python -m simulations.processes.race" + (" --quick" if quick else "")
    short = "\n".join(short_table(kept))
    lines = [TEXT.format(command=command, about=_about(every, quick), short=short, **_words(every))]
    for network in NETWORKS:
        panels = {}
        tables: list[str] = []
        for condition in CONDITIONS:
            if of := _of(kept, network, condition):
                panels[condition.title] = {
                    CONTESTANTS[name][0]: line_of(group, (QUICK if quick else RULES).slot) for name, group in of.items()
                }
                tables += _table(network, condition, of)
        if panels:
            title = f"Held-out loss on links of {network.title}"
            graph = Graph(f"race-{network.name}", title, "seconds", "held-out loss, nats a byte", panels)
            draw(graph, folder / f"{graph.name}.png")
            lines += ["", f"![{title}]({graph.name}.png)", *tables]
    if swept := load_runs(runs / SWEPT):
        lines += [SWEEP + _about([run for group in swept.values() for run in group], quick), *sweep_tables(swept)]
    path = folder / "race.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def sweep_tables(swept: Runs) -> list[str]:
    """A table a network with all settings of the sweep."""
    every = [(network, condition) for network in NETWORKS for condition in CONDITIONS]
    return [
        line
        for network, condition in every
        if (of := _of(swept, network, condition))
        for line in _table(network, condition, of, "sweep, ")
    ]


def _of(kept: Runs, network: Network, condition: Condition) -> dict[str, list[dict[str, Any]]]:
    """Contestant -> its runs on this network under this condition."""
    places = {name: (network.name, condition.name, name) for name in CONTESTANTS}
    return {name: kept[place] for name, place in places.items() if place in kept}


def short_table(kept: Runs) -> list[str]:
    """One line a contestant: mean loss at the end by network and condition, and the longest pause."""
    places = [(network, condition) for network in NETWORKS for condition in CONDITIONS]
    titles = [f"{network.rate:g} Mbit/s, {condition.short}" for network, condition in places]
    lines = ["| contestant | " + " | ".join(titles) + " | longest pause, s |"]
    lines.append("|---" + "|---:" * (len(places) + 1) + "|")
    for names in _rows(kept):
        groups = [
            [run for name in names for run in kept.get((network.name, condition.name, name), [])]
            for network, condition in places
        ]
        losses = [_mean_loss(group) for group in groups]
        pause = max(run["pause"] for group in groups for run in group)
        lines.append("| " + " | ".join([_title(names), *losses, f"{pause:.1f}"]) + " |")
    return lines


def _rows(kept: Runs) -> list[list[str]]:
    """Names of each line. Settings of one contestant that raced on different networks share a line."""
    rows: list[list[str]] = []
    for name in CONTESTANTS:
        on = {network for network, _, each in kept if each == name}
        same = [row for row in rows if _kind(row[0]) == _kind(name)]
        free = [row for row in same if not on & {network for network, _, each in kept if each in row}]
        if on and free:
            free[0].append(name)
        elif on:
            rows.append([name])
    return rows


def _kind(name: str) -> str:
    return CONTESTANTS[name][0].partition(",")[0]


def _title(names: Sequence[str]) -> str:
    """The title of a line: "DiLoCo, H 50/500"."""
    words = zip(*(CONTESTANTS[name][0].split() for name in names), strict=True)
    return " ".join("/".join(dict.fromkeys(each)).replace(",/", "/") for each in words)


def _mean_loss(runs: Sequence[dict[str, Any]]) -> str:
    losses = [run["curve"][-1][1] for run in runs if run["curve"]]
    return f"{sum(losses) / len(losses):.2f}" if losses else "-"


def _table(network: Network, condition: Condition, of: dict[str, list[dict[str, Any]]], what: str = "") -> list[str]:
    length = next(iter(of.values()))[0]["seconds"]
    lines = ["", f"### {network.title}: {what}{condition.title}, {length:g} s", ""]
    lines += [
        f"| contestant | seconds to {GOAL:g} | loss | single | steps a second | pause, s | sent, MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, runs in of.items():
        curves = [run["curve"] for run in runs]
        cells = [
            CONTESTANTS[name][0],
            spread([seconds_to(GOAL, curve) for curve in curves], 0),
            spread([curve[-1][1] if curve else math.inf for curve in curves], 3),
            spread([run["single"] for run in runs], 3),
            spread([run["rate"] for run in runs], 2),
            spread([run["pause"] for run in runs], 1),
            spread([sum(run["sent"]) / len(run["sent"]) / MEGABYTE for run in runs], 1),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for runs in of.values():
        # Runs that were played before it was called have none, and nor have those in which it failed.
        losses = [loss if (loss := run.get("finished")) is not None else math.inf for run in runs]
        if any(math.isfinite(loss) for loss in losses):
            lines += ["", f"Loss of the model that `gossipdp finish` leaves: {spread(losses, 3)}."]
    return lines


def _words(every: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the table of settings says of packages and delays."""
    delays = " and ".join(f"{delay_of(each, RULES.step)} steps at {each.rate:g} Mbit/s" for each in NETWORKS)
    return {
        "torchft": _installed(every, "torchft"),
        "hivemind": _installed(every, "hivemind"),
        "delays": f"delay of {delays}, so that no step waits, or just below H / 2",
    }


def _installed(every: Sequence[dict[str, Any]], package: str) -> str:
    raced = any(run["entry"].startswith(package) for run in every)
    return f"installed by `pip install {package}`" if raced else "not raced, because it was not installed"


def _about(every: Sequence[dict[str, Any]], quick: bool) -> str:
    repeats = len({run["repeat"] for run in every})
    commits, machines, days = ({run[key] for run in every} for key in ("commit", "machine", "on"))
    played = f"Commit {' and '.join(sorted(commits))}, {' to '.join(sorted(days))}"
    told = f"{len(every)} runs, repeats: {repeats}. {played}. {' and '.join(sorted(machines))}."
    return f"{told}\n\n**A short run: its figures mean nothing.**" if quick else told
