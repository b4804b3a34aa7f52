"""A training process with a small model and AdamW, for test_moments_hosts: logs the first state of its optimizer.

training_moments.py LOG
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import gossipdp


def main() -> None:
    log = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(time.time_ns() % 2**31)
    model = nn.Sequential(nn.Linear(64, 400), nn.Tanh(), nn.Linear(400, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    peer = gossipdp.attach(model, optimizer)
    state = optimizer.state.get(model[0].weight, {})
    note = {"begins": int(state.get("step", 0)), "second": float(state["exp_avg_sq"].sum()) if state else 0.0}
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    losses = []
    while True:
        data = torch.randn(64, 64, generator=generator)
        loss = nn.functional.mse_loss(model(data), torch.tanh(3.0 * data.flip(1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) in (20, 1000):
            with log.open("a") as file:
                file.write(json.dumps({**note, "steps": len(losses), "loss": sum(losses[-20:]) / 20}) + "\n")
        peer.report(loss=loss)


if __name__ == "__main__":
    main()
