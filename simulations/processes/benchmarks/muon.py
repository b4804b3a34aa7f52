"""Muon against AdamW with real daemons: the recipes `muon` and `plain` on a model of 11 million parameters.

    python -m simulations.processes.benchmarks.muon [--steps 200] [--every 10] [--size 11M]

For each optimizer, two hosts on loopback train from one start, with `gossipdp up` and `gossipdp join`. Both runs have
the same data, number of steps and learning rate. The held-out loss of each host's model, and that of their mean, are
printed. The mean is what one more exchange would leave.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from peers.jobs import byte_gpt
from simulations.processes.benchmarks.report import Report
from simulations.processes.namespaces.processes import ROOT, Host, end
from simulations.processes.progress import until

RECIPES = {"AdamW": "plain", "Muon and AdamW": "muon"}
FOLDER = ROOT / "peers" / "jobs" / "recipes"
FOUNDED = 120.0
PATIENCE = 3600.0
"""seconds for the training of one pair"""
WINDOWS, CONTEXT = 256, 32


def trained(recipe: str, folder: Path, options: argparse.Namespace) -> tuple[list[Path], list[int]]:
    """Train a pair of hosts. Return their models' files and numbers of exchanges."""
    settings = f"[exchange]\nevery = {options.every}\nwarmup_steps = {options.steps // 8}\n"
    hosts = [Host(folder, f"h{number}", founder=number == 0, preset="local", settings=settings) for number in range(2)]
    outs = [folder / f"{host.name}.safetensors" for host in hosts]
    commands = [
        [sys.executable, str(FOLDER / f"{recipe}_gossip.py"), str(options.steps), str(out), options.size]
        for out in outs
    ]
    first, second = hosts
    try:
        first.start_supervised(commands[0])
        until("the invite", (first.home / "invite").exists, hosts, seconds=FOUNDED)
        second.start_supervised(commands[1], join="@" + str(first.home / "invite"))
        exchanges = [0, 0]

        def ended() -> bool:
            for number, host in enumerate(hosts):
                exchanges[number] = max(exchanges[number], host.exchanges())
            return all(out.exists() for out in outs)

        until("both models", ended, hosts, seconds=PATIENCE)
    finally:
        end(hosts)
    return outs, exchanges


def held_out_loss(size: str, *files: Path) -> float:
    """Nats a byte of the mean of these models."""
    states = [load_file(file) for file in files]
    model = byte_gpt.build_model(size)
    model.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
    return byte_gpt.evaluate(model, byte_gpt.validation_windows(WINDOWS, CONTEXT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each host (%(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps a round (%(default)s)")
    parser.add_argument("--size", choices=byte_gpt.SIZES, default="11M", help="of the model (%(default)s)")
    parser.add_argument("--folder", type=Path, help="for the homes")
    options = parser.parse_args()
    report, means = Report(), {}
    report.line("model", size=options.size, torch=torch.__version__)
    for name, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, report.phase(name) as found:
            files, found["exchanges"] = trained(recipe, Path(folder), options)
            found["held_out_losses"] = [round(held_out_loss(options.size, file), 4) for file in files]
            means[name] = found["of_their_mean"] = round(held_out_loss(options.size, *files), 4)
    adamw, muon = means.values()
    report.line("Muon below AdamW", nats=round(adamw - muon, 4))
    return 0 if muon < adamw else 1


if __name__ == "__main__":
    sys.exit(main())
