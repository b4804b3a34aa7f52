"""GPT-2 of 124 million parameters between two hosts on a slow link: a join, exchanges, a kill, the end, and the export.

    python -m simulations.processes.benchmarks.gpt2 [--steps 30] [--every 10] [--rate 100mbit] [--rtt 0.05]

The model and the settings are those that nanoGPT trains GPT-2 with; the data are bytes, and a batch is as small as a
CPU wants. Hosts are network namespaces. The second host joins, its training command is killed after the first exchange,
and both train on until the first host has made `--steps` steps and two exchanges. `gossipdp finish` then ends the run.
Both final models must be equal, must load in transformers, and must predict held-out bytes better than at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import gossipdp
from peers.jobs.byte_gpt import load_corpus, windows_at
from simulations.processes.benchmarks.cabled_hosts import cabled_hosts
from simulations.processes.benchmarks.report import Report
from simulations.processes.namespaces.hosts import Lab, Weather
from simulations.processes.namespaces.processes import Host, end, environment
from simulations.processes.needs import lacks
from simulations.processes.progress import until

PATIENCE = 1200.0
"""seconds for the longest phase"""
HELD_OUT = 16
"""windows on which the loss is compared"""
EQUAL = 1e-3
"""largest RMS difference of two final models, relative to what training changed"""


def optimizer_of(model: GPT2LMHeadModel) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))


def train(options: argparse.Namespace) -> int:
    """A host's training command: for ever, with the loss of each step in a file."""
    torch.set_num_threads(1)
    model = GPT2LMHeadModel.from_pretrained(options.base)
    optimizer = optimizer_of(model)
    peer = gossipdp.attach(model, optimizer, samples_per_step=options.batch)
    # nanoGPT warms up for 2,000 of 600,000 steps; a run as short as this one for a tenth of its steps.
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, peer.schedule(lambda step: min(1.0, (step + 1) / max(1, options.steps // 10)))
    )
    text, random = load_corpus().train, torch.Generator().manual_seed(os.getpid())
    with options.train.open("a", buffering=1) as told:
        while True:
            starts = torch.randint(len(text) - options.context, (options.batch,), generator=random)
            windows = windows_at(text, starts, options.context)
            loss = model(windows, labels=windows).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            peer.report(loss=loss)
            told.write(json.dumps({"event": "step", "at": time.monotonic(), "loss": loss.item()}) + "\n")


def held_out_loss(folder: Path, context: int) -> float:
    """Nats a byte of the model in a directory of `save_pretrained`."""
    model, text = GPT2LMHeadModel.from_pretrained(folder).eval(), load_corpus().validation
    starts = torch.arange(HELD_OUT) * ((len(text) - context) // HELD_OUT)
    with torch.no_grad():
        windows = windows_at(text, starts, context)
        return float(model(windows, labels=windows).loss)


class Run:
    """Two hosts that train one GPT-2."""

    def __init__(self, lab: Lab, folder: Path, options: argparse.Namespace) -> None:
        self._options, self.base = options, folder / "base"
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        model.save_pretrained(self.base)
        settings = f'[exchange]\nevery = {options.every}\nwarmup_steps = 0\n[finish]\nbase = "{self.base}"\n'
        self.hosts = cabled_hosts(lab, folder, settings)
        self._report = Report()
        self._report.line("model", parameters=model.num_parameters(), torch=torch.__version__)

    def all_phases(self) -> bool:
        """Run them. Returns whether both hosts hold one better model."""
        first, second = self.hosts
        with self._report.phase("found"):
            self._start(first)
            self._until(first, "steps", lambda status: status["steps"] > 0)
        with self._report.phase("join"):
            self._start(second, join="@" + str(first.home / "invite"))
            self._until(second, "steps", lambda status: status["steps"] > 0)
        with self._report.phase("first exchange") as found:
            found["last"] = self._until(first, "an exchange", lambda status: status["last_exchange"])["last_exchange"]
        with self._report.phase("kill, and train again") as found:
            trainer = int(second.status()["trainer"])
            os.kill(trainer, signal.SIGKILL)
            status = self._until(second, "another process", lambda each: each["trainer"] not in (0, trainer))
            found["steps"] = status["steps"]
            self._until(second, "its steps", lambda each: each["steps"] > status["steps"])
        with self._report.phase("train on") as found:
            status = self._until(first, "steps and exchanges", self._enough)
            found |= {name: status[name] for name in ("steps", "clock", "exchanges", "loss", "consensus_distance")}
            found["notices"] = [host.status()["notices"] for host in self.hosts]
        with self._report.phase("finish"):
            words = [sys.executable, "-m", "peers.cli", "--home", str(first.home), "finish"]
            subprocess.run(words, env=environment(), check=True, timeout=PATIENCE)
            for host in self.hosts:
                assert host.supervisor is not None
                host.supervisor.ended(PATIENCE)
        return self._compared([host.home / "final" for host in self.hosts])

    def _compared(self, finals: list[Path]) -> bool:
        start, one, other = (load_file(each / "model.safetensors") for each in (self.base, *finals))
        change = sum(float((one[name] - start[name]).square().sum()) for name in one) ** 0.5
        apart = sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5 / change
        losses = [held_out_loss(each, self._options.context) for each in (self.base, *finals)]
        self._report.line("final models", held_out_losses=losses, relative_distance=apart)
        return bool(apart < EQUAL and max(losses[1:]) < losses[0])

    def _enough(self, status: dict[str, Any]) -> bool:
        return bool(status["steps"] >= self._options.steps and status["exchanges"].get("done", 0) >= 2)

    def _start(self, host: Host, join: str = "") -> None:
        options = self._options
        command = [sys.executable, "-m", "simulations.processes.benchmarks.gpt2", "--train", str(host.diary)]
        for name in ("steps", "batch", "context"):
            command += [f"--{name}", str(getattr(options, name))]
        host.start_supervised([*command, "--base", str(self.base)], join=join)

    def _until(self, host: Host, what: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        def met() -> dict[str, Any]:
            status = host.status()
            return status if status and condition(status) else {}

        return until(f"{host.name}: {what}", met, self.hosts, seconds=PATIENCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of the first host (%(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps a round (%(default)s)")
    parser.add_argument("--batch", type=int, default=2, help="windows a step (%(default)s)")
    parser.add_argument("--context", type=int, default=128, help="bytes a window (%(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of each host's cable (%(default)s)")
    parser.add_argument("--rtt", type=float, default=0.05, help="seconds (%(default)s)")
    parser.add_argument("--folder", type=Path, default=None, help="for the homes")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        return train(options)
    if why := lacks("weather"):
        print(why, file=sys.stderr)
        return 7
    lab = Lab(2, rate=options.rate, weather=Weather.of(options.rtt))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, lab:
        run = Run(lab, Path(folder), options)
        try:
            return 0 if run.all_phases() else 1
        finally:
            end(run.hosts)


if __name__ == "__main__":
    sys.exit(main())
