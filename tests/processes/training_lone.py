"""A training process for test_alone: AdamW until the file STOP exists; then it writes its steps and weights.

training_lone.py OUT STOP
"""

import json
import select
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import gossipdp


def main() -> None:
    out, stop = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peer = gossipdp.attach(model, optimizer)
    while not stop.exists():
        x = torch.randn(16, 32)
        loss = (model(x) - x[:, :8].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peer.report(loss=loss)
        select.select([], [], [], 0.01)
    told = {"step": peer.steps, "lost": peer.lost_steps, "clock": peer.clock, "alone": peer.alone}
    peer.detach()
    save_file(model.state_dict(), out)
    out.with_suffix(".json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
