"""What the scripts of all contestants share: model, data, pace, and the notes that the race reads.

A script announces itself, waits for the start, and makes steps until it is killed. It notes the time of each step, and
writes its parameters to a file at each slot: losses are computed afterwards, off the clock. A step begins no earlier
than the shortest step time after the last one began. So communication may hide behind the time of one step in full.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from peers.jobs import byte_gpt
from simulations.processes.race.rules import Rules

__all__ = ["Trainer", "fragments_of"]

LOOK = 0.01
"""seconds between two looks for the start"""


def fragments_of(model: nn.Module, count: int) -> list[nn.Module]:
    """The model's embedding, blocks and last norm in `count` parts, with about as many of them in each."""
    parts: list[nn.Module] = []
    for child in model.children():
        parts += child if isinstance(child, nn.ModuleList) else [child]
    ends = [len(parts) * number // count for number in range(count + 1)]
    return [nn.ModuleList(parts[start:end]) for start, end in pairwise(ends)]


class Trainer:
    """One host's training process.

    Args:
        folder: of the run; it has `rules.json`.
        host: number of the host from 0.
        life: number of restarts before.
        seed: of the model and, with host and life, of the data.
        pace: shortest time of a step in seconds.
    """

    def __init__(self, folder: Path, host: int, life: int, seed: int, pace: float) -> None:
        torch.set_num_threads(1)
        self.rules = Rules(**json.loads((folder / "rules.json").read_text()))
        self.model: nn.Module = byte_gpt.build_model(self.rules.size, seed)
        self.optimizer = byte_gpt.build_optimizer(self.model, self.rules.lr)
        self.step = 0
        """steps of this run of the script, and of those before it that it has restored"""
        self._folder, self._host, self._life, self._pace = folder, host, life, pace
        self._text = byte_gpt.load_corpus().train
        self._random = torch.Generator().manual_seed(1_000_003 * seed + 1_009 * host + life)
        self._began = self._last = self._saved = 0.0
        self._snapshots = 0

    @classmethod
    def of_command_line(cls, parser: argparse.ArgumentParser | None = None) -> tuple[Trainer, argparse.Namespace]:
        """The trainer that the options ask for, and all options."""
        parser = parser or argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        for name in ("host", "life", "seed"):
            parser.add_argument(f"--{name}", type=int, default=0)
        parser.add_argument("--pace", type=float, required=True)
        options = parser.parse_args()
        return cls(options.folder, options.host, options.life, options.seed, options.pace), options

    @property
    def seconds(self) -> float:
        """Time since the start of the race."""
        return time.monotonic() - self._began

    def steps(self, replica: nn.Module | None = None) -> Iterator[None]:
        """Wait for the start, then train for ever. It yields after each optimizer step, before the step is noted.

        Args:
            replica: the model as DDP wraps it; the plain model if not given.
        """
        self._await_start()
        with (self._folder / f"steps-{self._host}").open("a", buffering=1) as notes:
            while True:
                self._last = max(self._last + self._pace, time.monotonic())
                time.sleep(max(0.0, self._last - time.monotonic()))
                self._one_step(replica or self.model)
                self.step += 1
                yield
                notes.write(f"{self.seconds:.4f}\n")
                if self.seconds >= self._snapshots * self.rules.slot:
                    self.snapshot()
                    self._snapshots = int(self.seconds / self.rules.slot) + 1

    def snapshot(self) -> None:
        """Write the parameters, for a loss that is computed after the run."""
        path = self._folder / f"model-{self._host}-{self.seconds:.3f}"
        # Averaging may leave parameters as views of one vector, which the format refuses.
        save_file({name: tensor.clone() for name, tensor in self.model.state_dict().items()}, path)
        os.replace(path, path.with_name(path.name + ".safetensors"))

    # -- checkpoints of a group ---------------------------------------------------------------------------------

    def checkpoint(self, **more: Any) -> None:
        """Write what a restart needs, on host 0 and no more often than the rules say."""
        if self._host == 0 and self.seconds - self._saved >= self.rules.checkpoint:
            self._saved = self.seconds
            path = self._folder / "checkpoint.new"
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
            torch.save(state | more, path)
            os.replace(path, path.with_suffix(".pt"))

    def restore(self) -> dict[str, Any]:
        """Load the last checkpoint of the group, if there is one. All hosts read one file, which costs no transfer."""
        path = self._folder / "checkpoint.pt"
        if not path.exists():
            return {}
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return state

    # -- within -------------------------------------------------------------------------------------------------

    def _await_start(self) -> None:
        (self._folder / f"ready-{self._host}-{self._life}").touch()
        start = self._folder / "start"
        while not start.exists():
            time.sleep(LOOK)
        self._began = float(start.read_text())
        self._last = max(self._began, time.monotonic()) - self._pace

    def _one_step(self, replica: nn.Module) -> None:
        rules = self.rules
        for group in self.optimizer.param_groups:
            group["lr"] = rules.lr * min(1.0, (self.step + 1) / rules.warmup)
        starts = torch.randint(len(self._text) - rules.context, (rules.batch,), generator=self._random)
        loss = byte_gpt.window_loss(replica, byte_gpt.windows_at(self._text, starts, rules.context))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
