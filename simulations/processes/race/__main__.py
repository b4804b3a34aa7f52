"""gossipdp, DDP, local SGD and DiLoCo as real processes on emulated slow links: `make race`, as root.

    python -m simulations.processes.race [--repeats 3] [--networks 100mbit] [--conditions equal power]
    python -m simulations.processes.race --page     the page alone, from the runs that are kept
    python -m simulations.processes.race --quick    one repeat of short runs, whose figures mean nothing

Each finished run is a file in `runs/race`. A race that was stopped goes on after the last finished heat. Repeats are
the outermost loop, so that what the machine does over the hours meets all networks and conditions alike.
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
from simulations.processes.race.entries import ENTRIES
from simulations.processes.race.heat import Heat
from simulations.processes.race.page import write_page
from simulations.processes.race.rules import CONDITIONS, NETWORKS, QUICK, RULES

ROOT = Path(__file__).parents[3]
TRIES = 3
"""of a heat in which not all hosts become ready"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    rules = QUICK if options.quick else RULES
    folder = options.runs or ROOT / "runs" / ("race-quick" if options.quick else "race")
    folder.mkdir(parents=True, exist_ok=True)
    if not options.page:
        if why := lacks("weather"):
            print(why, file=sys.stderr)
            return 7
        heats = [
            Heat(network, condition, repeat)
            for repeat in range(1 if options.quick else options.repeats)
            for network in NETWORKS
            for condition in CONDITIONS
            if network.name in options.networks and condition.name in options.conditions
        ]
        about = {"commit": commit(ROOT), "machine": machine(), "on": time.strftime("%Y-%m-%d"), "quick": options.quick}
        for number, heat in enumerate(heats, 1):
            missing = [name for name in options.entries if not (folder / f"{heat.name}-{name}.json").exists()]
            if not missing:
                continue
            began = time.monotonic()
            for tried in range(1, TRIES + 1):
                try:
                    answers = heat.play(missing, rules)
                    break
                except (LabError, RuntimeError, AssertionError) as error:
                    print(f"heat {heat.name}, try {tried}: {error}", file=sys.stderr, flush=True)
            else:
                return 1
            for name, answer in answers.items():
                (folder / f"{heat.name}-{name}.json").write_text(json.dumps(answer | about))
            print(f"heat {number} of {len(heats)}: {heat.name}, {time.monotonic() - began:.0f} s", flush=True)
    page = options.results or (folder if options.quick else ROOT / "simulations" / "results")
    print(f"wrote {write_page(folder, page)}")
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    networks, conditions = [each.name for each in NETWORKS], [each.name for each in CONDITIONS]
    program = "python -m simulations.processes.race"
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="of everything (%(default)s)")
    parser.add_argument("--networks", nargs="+", choices=networks, default=networks)
    parser.add_argument("--conditions", nargs="+", choices=conditions, default=conditions)
    parser.add_argument("--entries", nargs="+", choices=ENTRIES, default=list(ENTRIES), help="contestants")
    parser.add_argument("--quick", action="store_true", help="one repeat of short runs, into runs/race-quick")
    parser.add_argument("--page", action="store_true", help="play nothing")
    parser.add_argument("--runs", type=Path, help="folder of finished runs")
    parser.add_argument("--results", type=Path, help="folder of the page")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
