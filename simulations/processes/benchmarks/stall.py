"""Training time lost to gossip, as a share of a round: submit and drain, and the speed of a snapshot's copy.

    python -m simulations.processes.benchmarks.stall [--size 11M] [--every 50] [--rounds 4] [--pairs 3] [--json]
    python -m simulations.processes.benchmarks.stall --device cuda --size 1B --dtype bf16 --batch 16 --context 1024

One training process runs with its daemon and a partner's daemon that answers, so submits and drains are real. One
process alternates between segments of `--rounds` rounds attached and detached. Three figures:

* held: share of a round's wall time inside the optimizer's hooks. On a CPU that is the copying.
* lost: how much longer attached segments take than detached ones, median of the pairs. It includes a device's copies. A
host leaves its daemon a core, so on a CPU training has the first core, and both daemons have the others.
* On CUDA, copy: speed of a snapshot's copy to the shared memory, mapped and pinned as in training, relative to a plain
copy of as many bytes to memory that CUDA allocated. The two alternate.

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gossipdp
from gossipdp.runtime.link.region import Allocation, Region
from gossipdp.training.tensors.layout import Layout
from peers.control import ask
from peers.jobs import byte_gpt
from simulations.processes.benchmarks.training import wait_ready
from simulations.processes.two_daemons import one_daemon

SIZES = {**byte_gpt.SIZES, "1B": byte_gpt.Size(layers=24, heads=15, width=1920, lr=2e-4)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LOST, COPY = 0.01, 0.80
"""marks: largest share of a round of 50 steps, and least share of the speed of a pinned copy"""


class Job:
    """byte_gpt on random bytes. The loss does not matter here; the arithmetic is real."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        torch.manual_seed(0)
        with self.device:
            self.model: nn.Module = byte_gpt.GPT(SIZES[options.size]).to(DTYPES[options.dtype])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (options.batch, options.context + 1)
        self.windows = torch.randint(byte_gpt.VOCABULARY, shape, device=self.device)

    def train(self, steps: int) -> float:
        """Seconds of `steps` steps."""
        self.settle()
        began = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            byte_gpt.window_loss(self.model, self.windows).backward()
            self.optimizer.step()
        self.settle()
        return time.perf_counter() - began

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextlib.contextmanager
def daemon(name: str, arguments: Sequence[str], options: argparse.Namespace) -> Iterator[Path]:
    """Start a daemon, on a CPU benchmark on the other cores. With one core they share it."""
    settings = {"exchange.every": options.every, "exchange.warmup_steps": 0, "exchange.early_steps": 0}
    own = os.sched_getaffinity(0)
    others = (options.cores[1:] if options.device == "cpu" else []) or options.cores
    os.sched_setaffinity(0, others)
    with one_daemon(name, arguments, settings) as home:
        os.sched_setaffinity(0, own)
        yield home


def segments(job: Job, home: Path, options: argparse.Namespace) -> dict[str, Any]:
    steps = options.rounds * options.every
    held, ratios, seconds = [], [], []
    gossipdp.attach(job.model, job.optimizer, home=home).detach()  # founds the network
    with daemon("partner", ["join", f"@{home / 'invite'}"], options) as partner:
        wait_ready(partner)
        before = ask(home, "status")
        for _ in range(options.pairs):
            with gossipdp.attach(job.model, job.optimizer, home=home) as peer:
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


def shared(size: int) -> Region:
    """Memory as the daemon allocates it and a training process maps it."""
    allocation = Allocation(size)
    try:
        while not allocation.step():
            continue
        return Region(allocation.fd, size)
    finally:
        allocation.close()


def copy_rate(job: Job, pairs: int = 7) -> float:
    """Speed of a snapshot's copy to shared memory, relative to a pinned copy of as many bytes."""
    layout = Layout(job.model)
    region = shared(layout.schema.size)
    layout.pin(region)
    if not torch.from_numpy(region.x).is_pinned():
        raise SystemExit("CUDA cannot pin memory that is shared here: what was measured is not the copy of training")
    into = torch.empty(layout.schema.size, dtype=torch.float32, pin_memory=True)
    plain = torch.empty(layout.schema.size, dtype=torch.float32, device=job.device)

    def seconds(work: Callable[[], object]) -> float:
        job.settle()
        began = time.perf_counter()
        work()
        job.settle()
        return time.perf_counter() - began

    def pinned_copy() -> Tensor:
        return into.copy_(plain, non_blocking=True)

    ratios = []
    for _ in range(pairs + 1):
        reference = seconds(pinned_copy)
        ratios.append(reference / seconds(lambda: layout.read(region.x)))
    layout.finish()
    return round(statistics.median(ratios[1:]), 3)  # the first pair warms up


def measure(options: argparse.Namespace) -> dict[str, Any]:
    options.cores = sorted(os.sched_getaffinity(0))
    if options.device == "cpu":
        torch.set_num_threads(1)
        os.sched_setaffinity(0, options.cores[:1])
    job = Job(options)
    with daemon("host", ["up", "--network", "bench"], options) as home:
        row = {
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "dtype": options.dtype,
            "every": options.every,
            **segments(job, home, options),
        }
    if options.device == "cuda":
        row["copy"] = copy_rate(job)
    row["reached"] = row["lost"] <= LOST and row.get("copy", 1.0) >= COPY
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="training time lost to gossip, as a share of a round")
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--size", choices=SIZES, default="11M")
    add("--dtype", choices=DTYPES, default="fp32")
    add("--batch", type=int, default=8)
    add("--context", type=int, default=128)
    add("--every", type=int, default=50, help="steps a round")
    add("--rounds", type=int, default=2, help="rounds a segment")
    add("--pairs", type=int, default=3)
    add("--json", action="store_true")
    options = parser.parse_args()
    row = measure(options)
    if options.json:
        print(json.dumps(row))
    else:
        text = (
            "{parameters:,} parameters in {dtype} on {device}, a round of {every} steps in {round_seconds} s: "
            "hooks hold {held:.2%}, lost in all {lost:.2%} (mark 1 %), {exchanges_a_round} exchanges a round"
        )
        copy = "; a snapshot leaves at {copy:.0%} of a pinned copy's rate (mark 80 %)" if "copy" in row else ""
        print((text + copy).format(**row), flush=True)
    return 0 if row["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
