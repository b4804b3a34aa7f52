"""The training process of `size`: many tensors with Adam's moments, and steps that cost nothing. Run as a script.

Its learning rate is 0, so that Adam changes no parameter. Once the file `move` is in its home, it adds the same noise
to every tensor in `MOVING` steps. So the sum of all anchors grows by a known number. With the file `pause` it takes no
step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import gossipdp

__all__ = ["MOVE", "MOVING", "PAUSE", "moved_by"]

TENSORS = 1200
MOVING = 60
"""steps that move every parameter"""
PAUSE, MOVE = "pause", "move"
LOOK = 0.05


def moved_by(parameters: int, seed: int) -> Iterator[torch.Tensor]:
    """What one moving step adds to each tensor, fp32, in the order of the flat vector."""
    each, rest = divmod(parameters, TENSORS)
    noise = _noise(each + rest, seed)
    for number in range(TENSORS):
        yield noise if number == TENSORS - 1 else noise[:each]


def _noise(size: int, seed: int) -> torch.Tensor:
    return 1e-4 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def model_of(parameters: int, seed: int) -> nn.ParameterList:
    torch.manual_seed(seed)
    each, rest = divmod(parameters, TENSORS)
    sizes = [each] * (TENSORS - 1) + [each + rest]
    return nn.ParameterList(nn.Parameter(0.02 * torch.randn(size)) for size in sizes)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("told", type=Path, help="file for lines of JSON")
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.2, help="seconds a step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(options.parameters, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    gradient = torch.full((max(len(parameter) for parameter in model.parameters()),), 1e-3)
    for parameter in model.parameters():
        parameter.grad = gradient[: len(parameter)]
    optimizer.step()  # makes the moments
    optimizer.zero_grad(set_to_none=True)
    first = next(model.parameters())
    noise = _noise(max(len(parameter) for parameter in model.parameters()), options.seed)
    home = Path(os.environ["GOSSIPDP_HOME"])
    pause, move = home / PAUSE, home / MOVE
    with options.told.open("a", buffering=1) as told:

        def tell(event: str, **figures: float) -> None:
            told.write(json.dumps({"event": event, "at": time.monotonic(), **figures}) + "\n")

        began = time.monotonic()
        peer = gossipdp.attach(model, optimizer)
        tell("attached", seconds=time.monotonic() - began)
        moved = 0
        while True:
            if pause.exists():
                tell("paused", steps=peer.steps)
                while pause.exists():
                    time.sleep(LOOK)
            if moved < MOVING and move.exists():
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(noise[: len(parameter)])
                moved += 1
                if moved == MOVING:
                    tell("moved", steps=peer.steps)
            first.grad = torch.zeros_like(first)
            began = time.monotonic()
            optimizer.step()
            tell("step", seconds=time.monotonic() - began, steps=peer.steps, stall=peer.stall_seconds)
            time.sleep(options.pace)


if __name__ == "__main__":
    sys.exit(main())
