"""`python -m simulations.processes.drill`: faults drawn by chance, looked at with the tools of an operator alone.

Each fault gets a folder with what the tools said, and nothing about what was done. `answers.json` says that. So a
person, or anybody who does not know, can go through the folders and be graded.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from simulations.processes.drill.faults import FAULTS, Fault
from simulations.processes.drill.town import Town
from simulations.processes.namespaces.processes import Host
from simulations.processes.needs import lacks
from simulations.processes.progress import until

LOOK: Final = 5.0
"""seconds between two looks of the tools"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.processes.drill", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=10, help="number of faults")
    options = parser.parse_args()
    if why := lacks("namespaces", "packet filter", "mounts", "prometheus"):
        print(why, file=sys.stderr)
        return 7
    options.out.mkdir(parents=True)
    random = Random(options.seed)
    drawn = random.sample(FAULTS, min(options.faults, len(FAULTS)))
    answers = []
    with Town(options.out / "town") as town:
        for number, fault in enumerate(drawn, start=1):
            host = random.choice(town.hosts[1:])  # the founder's host is where the operator sits
            answers.append(drill(town, fault, host, options.out / f"{number:02}"))
            (options.out / "answers.json").write_text(json.dumps(answers, indent=1))
            print(json.dumps(answers[-1]), flush=True)
    return 0


def drill(town: Town, fault: Fault, host: Host, folder: Path) -> dict[str, Any]:
    """Inject one fault, look at it with all tools, undo it, and wait until all is well."""
    folder.mkdir()
    words = re.compile(fault.words.format(name=host.name, address=host.address))
    began, found = time.monotonic(), dict[str, float]()
    undo = fault.inject(town, host)
    try:
        while time.monotonic() < began + fault.seconds:
            for tool, text in look(town, host).items():
                (folder / f"{tool}.txt").write_text(text)
                if tool not in found and words.search(text):
                    found[tool] = round(time.monotonic() - began, 1)
            time.sleep(LOOK)
    finally:
        undo()
    mended = time.monotonic()
    until(f"all is well after: {fault.name}", town.well, town.hosts, seconds=240)
    after = round(time.monotonic() - mended, 1)
    return {"fault": fault.name, "host": host.name, "seconds": found, "well_after": after}


def look(town: Town, host: Host) -> dict[str, str]:
    """What the tools say now: at the founder, where the operator sits, and on the host in question."""
    founder = town.hosts[0]
    pages = {each.name: town.page(each) for each in (founder, host)}
    shown = {
        name: {"verdict": page.get("status", page).get("verdict"), "notices": page.get("status", page).get("notices")}
        for name, page in pages.items()
    }
    return {
        "alerts": "\n".join(town.alerts()),
        "top": town.tool(founder, "top", "--once"),
        "page": json.dumps(shown, indent=1),
        f"status-{host.name}": town.tool(host, "status"),
        f"doctor-{host.name}": town.tool(host, "doctor"),
        "doctor-about": town.tool(founder, "doctor", "--peer", host.name),
    }


if __name__ == "__main__":
    sys.exit(main())
