"""gossipdp, DDP, local SGD and DiLoCo as real processes on emulated slow links: `make race`, as root.

    python -m simulations.processes.race [--repeats 3] [--networks 100mbit] [--conditions equal power]
    python -m simulations.processes.race --sweep    several settings of each rival, before the race
    python -m simulations.processes.race --page     the page alone, from the runs that are kept
    python -m simulations.processes.race --quick    one repeat of short runs, whose figures mean nothing

Each finished run is a file in `runs/race`, those of the sweep in `runs/race/sweep`. A race that was stopped goes on
after the last finished heat, and plays in it the contestants that have no file yet. Repeats are the outermost loop, so
that what the machine does over the hours meets all networks and conditions alike.

The sweep has one seed, which no race has, and equal hosts. It prints its tables. `RACED` in `entries.py` names the
settings that race.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from simulations.lab.pages.report import commit
from simulations.lab.runs.answers import machine
from simulations.processes.namespaces.hosts import LabError
from simulations.processes.needs import lacks
from simulations.processes.race.entries import CONTESTANTS, RACED, SWEEP
from simulations.processes.race.heat import Heat
from simulations.processes.race.page import SWEPT, sweep_tables, write_page
from simulations.processes.race.rules import CONDITIONS, NETWORKS, QUICK, RULES, Rules
from simulations.processes.race.summary import load_runs

ROOT = Path(__file__).parents[3]
TRIES = 3
"""of a heat in which not all hosts become ready"""
SIDE_BY_SIDE = 6
"""contestants of the sweep in one heat, so that two cores are enough"""
SEED = 100
"""of the sweep"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    rules = QUICK if options.quick else RULES
    folder = options.runs or ROOT / "runs" / ("race-quick" if options.quick else "race")
    if not options.page:
        if why := lacks("weather"):
            print(why, file=sys.stderr)
            return 7
        kept = folder / SWEPT if options.sweep else folder
        kept.mkdir(parents=True, exist_ok=True)
        heats = _heats(options)
        for number, (heat, entries) in enumerate(heats, 1):
            began = time.monotonic()
            if not _play(heat, entries, rules, kept):
                return 1
            print(f"heat {number} of {len(heats)}: {heat.name}, {time.monotonic() - began:.0f} s", flush=True)
    if options.sweep:
        print(*sweep_tables(load_runs(folder / SWEPT)), sep="\n")
        return 0
    page = options.results or (folder if options.quick else ROOT / "simulations" / "results")
    print(f"wrote {write_page(folder, page)}")
    return 0


def _heats(options: argparse.Namespace) -> list[tuple[Heat, Sequence[str]]]:
    """Each heat, and who is in it."""
    networks = [network for network in NETWORKS if network.name in options.networks]
    if options.sweep:
        entries = options.entries or SWEEP
        parts = [entries[start : start + SIDE_BY_SIDE] for start in range(0, len(entries), SIDE_BY_SIDE)]
        return [(Heat(network, CONDITIONS[0], SEED), part) for network in networks for part in parts]
    return [
        (Heat(network, condition, repeat), options.entries or RACED[network.name])
        for repeat in range(1 if options.quick else options.repeats)
        for network in networks
        for condition in CONDITIONS
        if condition.name in options.conditions
    ]


def _play(heat: Heat, entries: Sequence[str], rules: Rules, folder: Path) -> bool:
    """Play a heat with those that have no file in `folder` yet. Return whether it was played."""
    missing = [name for name in entries if not (folder / f"{heat.name}-{name}.json").exists()]
    if not missing:
        return True
    about = {"commit": commit(ROOT), "machine": machine(), "on": time.strftime("%Y-%m-%d"), "quick": rules is QUICK}
    for tried in range(1, TRIES + 1):
        try:
            answers = heat.play(missing, rules)
            break
        except (LabError, RuntimeError, AssertionError) as error:
            print(f"heat {heat.name}, try {tried}: {error}", file=sys.stderr, flush=True)
    else:
        return False
    for name, answer in answers.items():
        (folder / f"{heat.name}-{name}.json").write_text(json.dumps(answer | about))
    return True


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    networks, conditions = [each.name for each in NETWORKS], [each.name for each in CONDITIONS]
    program = "python -m simulations.processes.race"
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="of everything (%(default)s)")
    parser.add_argument("--networks", nargs="+", choices=networks, default=networks)
    parser.add_argument("--conditions", nargs="+", choices=conditions, default=conditions)
    parser.add_argument("--entries", nargs="+", choices=CONTESTANTS, help="contestants (those of RACED, or of SWEEP)")
    parser.add_argument("--quick", action="store_true", help="one repeat of short runs, into runs/race-quick")
    parser.add_argument("--sweep", action="store_true", help="one seed of the rivals' settings, equal hosts")
    parser.add_argument("--page", action="store_true", help="play nothing")
    parser.add_argument("--runs", type=Path, help="folder of finished runs")
    parser.add_argument("--results", type=Path, help="folder of the page")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
