"""Losses of a run's snapshots, computed after the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from peers.jobs import byte_gpt
from simulations.processes.race.rules import Rules

__all__ = ["held_out_losses"]


def held_out_losses(folder: Path, rules: Rules, hosts: Sequence[int]) -> dict[int, list[tuple[float, float]]]:
    """Of these hosts: (seconds since the start, held-out nats a byte) of each snapshot, in their order."""
    torch.set_num_threads(1)
    windows = byte_gpt.validation_windows(rules.windows, rules.context)
    model = byte_gpt.build_model(rules.size)
    curves: dict[int, list[tuple[float, float]]] = {}
    for host in hosts:
        curves[host] = []
        for path in folder.glob(f"model-{host}-*.safetensors"):
            with torch.no_grad():
                model.load_state_dict(load_file(path))
            loss = byte_gpt.evaluate(model, windows, batch=rules.windows)
            curves[host].append((float(path.stem.split("-")[2]), round(loss, 5)))
        curves[host].sort()
    return curves
