"""Steps a second of byte_gpt attached to its daemon, against GOSSIPDP_OFF=1 with idle daemons.

    python -m simulations.processes.benchmarks.training [--every 5 50] [--pairs 5] [--steps 400] [--json]

Two daemons run on this machine's cores all the time: the training process's own, and that of a partner whose steps
compute nothing, so exchanges are real. Attached and detached runs alternate. The figure is the median of the pairs'
ratios of steps a second. Rounds and exchanges are counted: a run without them would be fast.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers.control import ask
from peers.jobs import byte_gpt
from simulations.processes.benchmarks.idle_partner import idle_partner, make_steps
from simulations.processes.two_daemons import one_daemon

MARKS = {5: 0.90, 50: 0.97}


def train(home: Path, steps: int, size: str, *, attached: bool) -> float:
    """Steps a second of one training process, without its start-up."""
    environment = {**os.environ, "GOSSIPDP_HOME": str(home), "OMP_NUM_THREADS": "1"}
    if not attached:
        environment["GOSSIPDP_OFF"] = "1"
    command = [sys.executable, "-m", "peers.jobs.byte_gpt", "--size", size, "--steps", str(steps), "--threads", "1"]
    command += ["--eval-every", "0", "--eval-windows", "4", "--data-seed", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return steps / float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def measure(every: int, pairs: int, steps: int, size: str) -> dict[str, Any]:
    settings = {"exchange.every": every, "exchange.warmup_steps": 0, "exchange.early_steps": 0}
    with one_daemon("host", ["up", "--network", "bench"], settings) as home:
        train(home, 20, size, attached=True)  # founds the network
        with one_daemon("partner", ["join", f"@{home / 'invite'}"], settings) as partner:
            wait_ready(partner)
            ratios, rates = [], []
            pace = 1 / train(home, 20, size, attached=False)
            arguments = ["--partner", str(partner), "--pace", str(pace), "--size", size]
            for pair in range(pairs):
                order = (True, False) if pair % 2 == 0 else (False, True)
                before = ask(home, "status")
                with idle_partner(__spec__.name, arguments):
                    rate = {attached: train(home, steps, size, attached=attached) for attached in order}
                after = ask(home, "status")
                rounds = after["round"] - before["round"]
                exchanges = after["exchanges"].get("done", 0) - before["exchanges"].get("done", 0)
                if rounds < 0.8 * steps / every - 1 or exchanges < 0.5 * rounds:
                    raise SystemExit(f"H={every}: only {rounds} rounds and {exchanges} exchanges in {steps} steps")
                ratios.append(rate[True] / rate[False])
                rates.append(rate[False])
    ratio = statistics.median(ratios)
    return {
        "every": every,
        "size": size,
        "pairs": pairs,
        "steps_per_second_off": round(statistics.median(rates), 1),
        "ratio": round(ratio, 3),
        "mark": MARKS.get(every),
        "reached": ratio >= MARKS.get(every, 0.0),
    }


def wait_ready(home: Path) -> None:
    deadline = time.monotonic() + 30.0
    while ask(home, "status")["state"] != "ready":
        if time.monotonic() > deadline:
            raise SystemExit("the partner did not get the model")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description="steps a second attached, against GOSSIPDP_OFF=1")
    parser.add_argument("--every", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--size", choices=byte_gpt.SIZES, default="0.25M")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--partner", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.partner:
        make_steps(byte_gpt.build_model(options.size), options.partner, options.pace)
        return 0
    figures = [measure(every, options.pairs, options.steps, options.size) for every in options.every]
    for row in figures:
        if options.json:
            print(json.dumps(row))
        else:
            text = "steps a second attached / off, byte_gpt {size}, H={every}: {ratio:.3f} (mark {mark})"
            print(text.format(**row), flush=True)
    return 0 if all(row["reached"] for row in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
