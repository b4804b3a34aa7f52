"""Losses of a run's snapshots, computed after the run.

The model of a run is the mean of its healthy hosts' parameters: what `gossipdp finish`, or one more averaging, would
leave at that time. Replicas of DDP are equal to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from peers.jobs import byte_gpt
from simulations.processes.race.rules import TOGETHER, Rules

__all__ = ["Evaluation"]


class Evaluation:
    """Of the hosts `hosts`, from the snapshots in `folder` of the first `seconds`."""

    def __init__(self, folder: Path, rules: Rules, hosts: Sequence[int], seconds: float) -> None:
        torch.set_num_threads(1)
        self._windows = byte_gpt.validation_windows(rules.windows, rules.context)
        self._model = byte_gpt.build_model(rules.size)
        until = seconds + TOGETHER
        self._snapshots = {
            host: sorted((at, path) for path in _paths(folder, host) if (at := _seconds(path)) <= until)
            for host in hosts
        }

    def curve(self) -> list[tuple[float, float]]:
        """(seconds since the start, held-out nats a byte of the mean model) at each snapshot of the first host."""
        first = next(iter(self._snapshots.values()))
        curve: list[tuple[float, float]] = []
        for seconds, _ in first:
            latest = [
                [path for at, path in snapshots if at <= seconds + TOGETHER][-1:]
                for snapshots in self._snapshots.values()
            ]
            if all(latest):
                curve.append((seconds, self._loss([path for paths in latest for path in paths])))
        return curve

    def single(self) -> float:
        """Mean loss of the hosts' own last models; NaN if a host has none."""
        if not all(self._snapshots.values()):
            return float("nan")
        losses = [self._loss([snapshots[-1][1]]) for snapshots in self._snapshots.values()]
        return round(sum(losses) / len(losses), 5)

    def loss_of(self, path: Path) -> float:
        """Loss of one file of parameters."""
        return self._loss([path])

    def _loss(self, paths: Sequence[Path]) -> float:
        states = [load_file(path) for path in paths]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self._model.load_state_dict(mean)
        return round(byte_gpt.evaluate(self._model, self._windows, batch=len(self._windows)), 5)


def _paths(folder: Path, host: int) -> list[Path]:
    return list(folder.glob(f"model-{host}-*.safetensors"))


def _seconds(path: Path) -> float:
    return float(path.stem.split("-")[2])
