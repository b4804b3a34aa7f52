"""A training process for test_supervised: a linear regression that reports its distance to the solution.

training_late.py OUT SEED BEFORE_ATTACH BEFORE_STEPS: it attaches and steps once these files exist.
"""

import json
import select
import sys
from pathlib import Path

import torch

import gossipdp


def wait_for(path: Path) -> None:
    while not path.exists():
        select.select([], [], [], 0.02)


def main() -> None:
    out, seed, attach, steps = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(7)) / 8
    wait_for(attach)
    peer = gossipdp.attach(model, optimizer)
    generator = torch.Generator().manual_seed(seed)
    with out.open("w", buffering=1) as lines:
        step = 0
        while True:
            error = (model.weight - truth).norm().item()
            lines.write(json.dumps({"step": step, "clock": peer.clock, "error": error}) + "\n")
            wait_for(steps)
            x = torch.randn(16, 64, generator=generator)
            loss = (model(x) - x @ truth.T).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            select.select([], [], [], 0.005)


if __name__ == "__main__":
    main()
