"""Training time lost to gossip, as a share of a round: submit and drain, and the speed of a snapshot's copy.

    python -m simulations.processes.benchmarks.stall [--size 11M] [--every 50] [--rounds 4] [--pairs 3] [--json]

One training process runs with its daemon and a partner whose steps compute nothing, so submits and drains are real. One
process alternates between segments of `--rounds` rounds attached and detached. Two figures:

* held: share of a round's wall time inside the optimizer's hooks, which copy.
* lost: how much longer attached segments take than detached ones, median of the pairs. A host leaves its daemon a core,
so training has the first core, and both daemons have the others. `gpu` is the benchmark of a device.

Rounds and exchanges are counted: a run without them would be fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import gossipdp
from peers.control import ask
from peers.jobs import byte_gpt
from simulations.processes.benchmarks.idle_partner import idle_partner, make_steps
from simulations.processes.benchmarks.training import wait_ready
from simulations.processes.two_daemons import one_daemon

T = TypeVar("T")
LOST = 0.01
"""mark: largest share of a round of 50 steps"""


class Job:
    """byte_gpt on random bytes. The loss does not matter here; the arithmetic is real."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.model: nn.Module = byte_gpt.build_model(options.size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (options.batch, options.context + 1)
        self.windows = torch.randint(byte_gpt.VOCABULARY, shape)

    def train(self, steps: int) -> float:
        """Seconds of `steps` steps."""
        began = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            byte_gpt.window_loss(self.model, self.windows).backward()
            self.optimizer.step()
        return time.perf_counter() - began


@contextlib.contextmanager
def beside(options: argparse.Namespace, started: AbstractContextManager[T]) -> Iterator[T]:
    """Start a daemon or the partner on the other cores. With one core they share it."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, options.cores[1:] or options.cores)
    with started as given:
        os.sched_setaffinity(0, own)
        yield given


def daemon(name: str, arguments: Sequence[str], options: argparse.Namespace) -> AbstractContextManager[Path]:
    settings = {"exchange.every": options.every, "exchange.warmup_steps": 0, "exchange.early_steps": 0}
    return beside(options, one_daemon(name, arguments, settings))


def segments(job: Job, home: Path, options: argparse.Namespace) -> dict[str, Any]:
    steps = options.rounds * options.every
    held, ratios, seconds = [], [], []
    gossipdp.attach(job.model, job.optimizer, home=home).detach()  # founds the network
    with daemon("partner", ["join", f"@{home / 'invite'}"], options) as partner:
        wait_ready(partner)
        before = ask(home, "status")
        pace = job.train(options.every) / options.every
        arguments = ["--partner", str(partner), "--pace", str(pace), "--size", options.size]
        for _ in range(options.pairs):
            with (
                beside(options, idle_partner(__spec__.name, arguments)),
                gossipdp.attach(job.model, job.optimizer, home=home) as peer,
            ):
                job.train(options.every)
                stalled = peer.stall_seconds
                attached = job.train(steps)
                held.append((peer.stall_seconds - stalled) / attached)
            detached = job.train(steps)
            ratios.append(1 - detached / attached)
            seconds.append(detached / options.rounds)
        after = ask(home, "status")
    rounds = after["round"] - before["round"]
    exchanges = after["exchanges"].get("done", 0) - before["exchanges"].get("done", 0)
    if rounds < 0.8 * options.rounds * options.pairs or exchanges < 0.5 * rounds:
        raise SystemExit(f"only {rounds} rounds and {exchanges} exchanges: what was measured is not gossip")
    return {
        "round_seconds": round(statistics.median(seconds), 3),
        "held": round(statistics.median(held), 5),
        "lost": round(statistics.median(ratios), 4),
        "exchanges_a_round": round(exchanges / rounds, 2),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    options.cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    os.sched_setaffinity(0, options.cores[:1])
    job = Job(options)
    with daemon("host", ["up", "--network", "bench"], options) as home:
        row = {
            "torch": torch.__version__,
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "every": options.every,
            **segments(job, home, options),
        }
    row["reached"] = row["lost"] <= LOST
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="training time lost to gossip, as a share of a round")
    add = parser.add_argument
    add("--size", choices=byte_gpt.SIZES, default="11M")
    add("--batch", type=int, default=8)
    add("--context", type=int, default=128)
    add("--every", type=int, default=50, help="steps a round")
    add("--rounds", type=int, default=2, help="rounds a segment")
    add("--pairs", type=int, default=3)
    add("--json", action="store_true")
    add("--partner", type=Path, help=argparse.SUPPRESS)
    add("--pace", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.partner:
        make_steps(byte_gpt.build_model(options.size), options.partner, options.pace)
        return 0
    row = measure(options)
    if options.json:
        print(json.dumps(row))
    else:
        text = (
            "{parameters:,} parameters, a round of {every} steps in {round_seconds} s: "
            "hooks hold {held:.2%}, lost in all {lost:.2%} (mark 1 %), {exchanges_a_round} exchanges a round"
        )
        print(text.format(**row), flush=True)
    return 0 if row["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
