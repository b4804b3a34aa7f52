"""Six peers of which five cannot be dialled, against six that can.

    python -m simulations.processes.benchmarks.hidden --seeds 3 --page

Hosts are network namespaces with cables of 100 Mbit/s. Each hidden one is behind a NAT of another kind. They train the
demo's job for the same number of steps, and end with a final model. Answers are kept in `runs/hidden`. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

from peers.finished import FINAL, MODEL
from simulations.lab.pages.report import commit
from simulations.processes.namespaces import hosts as labs
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.nats import Nat, behind
from simulations.processes.namespaces.processes import Host, Process, end, environment
from simulations.processes.needs import lacks
from simulations.processes.progress import until

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "simulations" / "results" / "hidden.md"
KEPT: Final = Path("runs/hidden")
PORT: Final = 4710
WEB: Final = 443
"""the port of members that carry: a firewall lets it pass"""
RATE: Final = "100mbit"
LOOK: Final = 0.5
"""seconds between two looks at the peers"""
CARRIED: Final = re.compile(r'^gossipdp_relayed_bytes_total\{role="relay"\} (\S+)$', re.MULTILINE)
WINDOWS: Final = 256
EVERY: Final = 30
"""H, steps a round, as in the demo"""
DIRECT: Final = "direct"


class Case(NamedTuple):
    """Who takes part beside five hosts that train."""

    name: str
    text: str
    hidden: bool
    """whether the five cannot be dialled"""
    sixth: bool = False
    """whether a sixth host trains, which can be dialled and carries if the five are hidden"""
    relays: tuple[str, ...] = ()
    """hosts that only carry: "honest", "hostile", or "killed" after a third of the run"""


CASES: Final = (
    Case("dialable6", "six that can be dialled", hidden=False, sixth=True),
    Case("carrier", "five hidden, one that trains and carries", hidden=True, sixth=True),
    Case("dialable5", "five that can be dialled", hidden=False),
    Case("relay", "five hidden, one relay without a model", hidden=True, relays=("honest",)),
    Case("killed", "five hidden, two relays, one killed after a third", hidden=True, relays=("killed", "honest")),
    Case("hostile", "five hidden, two relays, one hostile", hidden=True, relays=("hostile", "honest")),
)


@dataclass
class Observed:
    """What a look each half second tells of one host that trains."""

    began: float
    """when its processes were started"""
    together: float = 0.0
    """when the training of all hosts began"""
    joined: float = 0.0
    """seconds from the start of its processes until its training was ready to begin"""
    steps: int = 0
    first: float = 0.0
    """seconds of training until its first exchange"""
    paths: Counter[str] = field(default_factory=Counter)
    """path -> exchanges over it"""
    counted: Counter[str] = field(default_factory=Counter)
    """partner -> exchanges with it"""
    failed: int = 0

    def look(self, host: Host) -> None:
        status = host.status()
        if not status:
            return
        self.steps = status["steps"] or 0
        self.failed = sum(number for result, number in status["exchanges"].items() if result != "done")
        for row in host.members():
            done = row["exchanges"] or 0
            path = DIRECT if row["path"] == DIRECT else "through a relay" if "via" in row["path"] else "outbound-only"
            self.paths[path] += done - self.counted[row["id"]]
            self.counted[row["id"]] = max(done, self.counted[row["id"]])
        if not self.first and self.paths.total():
            self.first = time.monotonic() - self.together


class Run:
    """One run of one case."""

    def __init__(self, case: Case, seed: int, steps: int, folder: Path) -> None:
        self._case, self._seed, self._steps, self._folder = case, seed, steps, folder
        self._hosts: list[Host] = []
        self._relays: list[Host] = []
        self._places: dict[str, labs.Host] = {}
        self._carried: dict[str, float] = {}
        """host -> megabytes that it carried for others"""

    def play(self) -> dict[str, Any]:
        case = self._case
        with (
            Lab(6 + len(case.relays), rate=RATE, subnet="44.77") as lab,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(lambda: end([*self._hosts, *self._relays]))
            self._settle_in(lab, stack)
            began, killed = time.monotonic(), False
            observed = self._start()
            self._begin_together(observed)
            while any(host.supervisor is not None and host.supervisor.code is None for host in self._hosts):
                time.sleep(LOOK)
                for host in self._hosts:
                    observed[host.name].look(host)
                for host in [*self._hosts[5:], *self._relays]:
                    self._carried[host.name] = max(self._carried.get(host.name, 0.0), self._carries(host))
                if "killed" in case.relays and not killed and observed["h1"].steps > self._steps / 3:
                    doomed = self._relays[case.relays.index("killed")].daemon
                    assert doomed is not None
                    doomed.kill()
                    killed = True
            return {
                "case": case.name,
                "seed": self._seed,
                "steps": self._steps,
                "seconds": round(time.monotonic() - began, 1),
                "losses": self._losses(),
                "joined": [round(each.joined, 1) for each in observed.values()],
                "first": [round(each.first, 1) for each in observed.values()],
                "paths": dict(sum((each.paths for each in observed.values()), Counter())),
                "failed": sum(each.failed for each in observed.values()),
                "carried": [*self._carried.values()],
                "commit": commit(ROOT),
            }

    def _settle_in(self, lab: Lab, stack: contextlib.ExitStack) -> None:
        """Make all homes. Hosts h1 to h5 may be hidden; h6 and relays never are."""
        case, outside = self._case, iter(lab.hosts)
        routers = [next(outside) for _ in Nat]
        self._places = {f"h{number}": place for number, place in enumerate(routers, 1)}
        if case.hidden:
            for number, (router, nat) in enumerate(zip(routers, Nat, strict=True), 1):
                self._places[f"h{number}"] = stack.enter_context(behind(router, nat, PORT))
        carriers = {}
        if case.sixth:
            carriers["h6"] = next(outside)
        for number in range(1, len(case.relays) + 1):
            carriers[f"relay{number}"] = next(outside)
        self._places |= carriers
        seeds = [f"{place.address}:{WEB}" for place in carriers.values()] if case.hidden else []
        for name in self._places:
            train = not name.startswith("relay")
            port = WEB if name in carriers and case.hidden else PORT
            lines = [f'listen = "tcp://*:{port}"']
            lines += [f"seeds = {json.dumps(seeds)}"] if name == "h1" and seeds else []
            lines += ['relay = "auto"'] if name == "h6" and case.hidden else []
            lines += [] if train else ["relay_only = true"]
            lines += ["[exchange]", f"every = {EVERY}", f"run_steps = {self._steps}"]
            made = Host(
                self._folder,
                name,
                founder=name == "h1",
                address=self._places[name].address,
                port=port,
                within=self._places[name].command,
                preset="wan",
            )
            kept = [line for line in made.run_file.read_text().splitlines() if not line.startswith("listen")]
            made.run_file.write_text("\n".join([*kept, *lines, ""]))
            (self._hosts if train else self._relays).append(made)

    def _start(self) -> dict[str, Observed]:
        founder, *others = self._hosts
        observed = {founder.name: Observed(time.monotonic())}
        founder.start_supervised(self._training(founder))
        invite = founder.home / "invite"
        until("the founder writes an invite", invite.exists, [founder])
        for relay, kind in zip(self._relays, self._case.relays, strict=True):
            relay.settle_in(invite.read_text())
            if kind != "hostile":
                relay.start_daemon()
                continue
            argv = [sys.executable, "-m", "simulations.processes.benchmarks.hostile_relay", "--home", str(relay.home)]
            relay.daemon = Process(self._places[relay.name].command(argv), relay.log, environment())
        for host in sorted(others, key=lambda host: host.name != "h6"):  # who can be dialled comes first
            observed[host.name] = Observed(time.monotonic())
            host.start_supervised(self._training(host), join=f"@{invite}")
        return observed

    def _begin_together(self, observed: dict[str, Observed]) -> None:
        """Hold each training process at its first steps until all have their model: equal steps are then equal work."""
        held: dict[str, int] = {}

        def ready() -> int:
            for host in self._hosts:
                status = host.status() if host.name not in held else {}
                if status and status["state"] == "ready" and status["training"] == "attached":
                    held[host.name] = host.children()["training"]
                    os.kill(held[host.name], signal.SIGSTOP)
                    observed[host.name].joined = time.monotonic() - observed[host.name].began
            return len(held)

        until("all hosts have the model", lambda: ready() == len(self._hosts), self._hosts, moves=lambda: len(held))
        for host in self._hosts:
            os.kill(held[host.name], signal.SIGCONT)
            observed[host.name].together = time.monotonic()

    def _training(self, host: Host) -> list[str]:
        number = 1000 * self._seed + int(host.name[1:])
        return [
            sys.executable, "-m", "peers.jobs.byte_gpt", "--size", "0.25M", "--steps", str(self._steps), "--batch", "4",
            "--seed", str(self._seed), "--data-seed", str(number), "--threads", "1", "--eval-every", "0",
            "--eval-windows", "8",
        ]  # fmt: skip

    def _losses(self) -> list[float]:
        """Held-out loss of each host's final model, in nats a byte; NaN for a host without one."""
        import torch
        from safetensors.torch import load_file

        from peers.jobs import byte_gpt

        torch.set_num_threads(1)
        windows, model = byte_gpt.validation_windows(WINDOWS, 128), byte_gpt.build_model("0.25M")
        losses = []
        for host in self._hosts:
            path = host.home / FINAL / MODEL
            if not path.exists():
                losses.append(float("nan"))
                continue
            model.load_state_dict(load_file(path))
            losses.append(round(byte_gpt.evaluate(model, windows), 4))
        return losses

    def _carries(self, host: Host) -> float:
        """Megabytes that this host has carried for others; 0 without a daemon."""
        try:
            with (
                self._places[host.name].inside(),
                urllib.request.urlopen(host.status()["metrics"], timeout=10) as answer,
            ):
                found = CARRIED.search(answer.read().decode())
        except (KeyError, OSError):
            return 0.0
        return round(float(found[1]) / 1e6, 1) if found else 0.0


def page(runs: Sequence[dict[str, Any]], command: str) -> str:
    """The page in Markdown."""
    by_case = {case.name: [run for run in runs if run["case"] == case.name] for case in CASES}
    steps, commits = max(run["steps"] for run in runs), sorted({run["commit"].partition(",")[0] for run in runs})
    lines = [
        "# hidden: What does it cost that others cannot dial a host?",
        "",
        f"The demo's job, `byte_gpt` of 0.246 million parameters, {steps:,} steps a host, H = {EVERY}. Hosts are",
        f"network namespaces with cables of {RATE.removesuffix('mbit')} Mbit/s. Each hidden one is behind something",
        f"else: a {', a '.join(nat.value for nat in Nat)}. Two cores run all of them.",
        f"Commit {', '.join(commits)}, {date.today().isoformat()}.",
        "",
        f"    {command}",
        "",
        "* **Loss** is that of the final models, in nats a byte, held out: mean over hosts and seeds, and each seed's.",
        "* **Exchanges** are those of all hosts, a mean over the seeds. *Lost* are those that mixed nothing.",
        "* **Joins**: seconds from the start of a host's processes until it may train, median and longest. All begin",
        "  to train together. **First exchange**: seconds of training until then.",
        "* **Carried**: megabytes of the messages that each member passed on.",
        "",
        "| hosts | loss | seeds | exchanges | direct | relayed | lost | joins, s | first exchange, s | carried, MB |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for case in CASES:
        if not (played := by_case[case.name]):
            continue
        losses = [statistics.mean(run["losses"]) for run in played]
        joins, firsts = ([seconds for run in played for seconds in run[what]] for what in ("joined", "first"))
        done = [sum(run["paths"].values()) for run in played]
        carried = [sum(column) / len(column) for column in zip(*(run["carried"] for run in played), strict=True)]
        cells = [
            case.text,
            f"{statistics.mean(losses):.3f}",
            ", ".join(f"{loss:.3f}" for loss in losses),
            f"{statistics.mean(done):.0f}",
            f"{statistics.mean(run['paths'].get(DIRECT, 0) for run in played):.0f}",
            f"{statistics.mean(run['paths'].get('through a relay', 0) for run in played):.0f}",
            f"{statistics.mean(run['failed'] for run in played):.0f}",
            f"{statistics.median(joins):.0f} ({max(joins):.0f})",
            f"{statistics.median(firsts):.0f} ({max(firsts):.0f})",
            ", ".join(f"{each:.0f}" for each in carried) if case.hidden else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1200, help="of each host (%(default)s)")
    parser.add_argument("--case", nargs="+", choices=[case.name for case in CASES], help="these alone")
    parser.add_argument("--page", action="store_true", help="write the page from all kept runs")
    options = parser.parse_args(arguments)
    if why := lacks("NAT"):
        print(why, file=sys.stderr)
        return 7
    runs = []
    for seed in range(options.seeds):
        for case in CASES:
            path = KEPT / f"{case.name}-{options.steps}-{seed}.json"
            if not path.exists() and (options.case is None or case.name in options.case):
                with tempfile.TemporaryDirectory() as folder:
                    told = Run(case, seed, options.steps, Path(folder)).play()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(told))
                print(json.dumps(told), flush=True)
            if path.exists():
                runs.append(json.loads(path.read_text()))
    if options.page:
        command = "python -m simulations.processes.benchmarks.hidden " + " ".join(arguments or sys.argv[1:])
        PAGE.write_text(page(runs, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
