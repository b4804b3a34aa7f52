"""A schedule, and a checkpoint from which a script that is started again goes on: `python resume.py`."""

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save, warm_up

BATCH = 8
steps, out = options()
state = f"{out}.state"
model = build_model("0.25M")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, warm_up)
try:
    kept = torch.load(state, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    scheduler.load_state_dict(kept["scheduler"])
except FileNotFoundError:
    pass

for windows in DataLoader(Windows(steps * BATCH), BATCH):
    if scheduler.last_epoch >= steps:
        break
    loss = window_loss(model, windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if scheduler.last_epoch % 20 == 0:
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        torch.save({name: part.state_dict() for name, part in parts.items()}, state)

save(model, out)
