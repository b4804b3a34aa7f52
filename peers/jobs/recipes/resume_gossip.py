"""A schedule, and a checkpoint from which a script that is started again goes on: `python resume.py`."""

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import gossipdp
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save, warm_up

BATCH = 8
steps, out = options()
state = f"{out}.state"
model = build_model("0.25M")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
peer = gossipdp.attach(model, optimizer, samples_per_step=BATCH)
scheduler = LambdaLR(optimizer, peer.schedule(warm_up))
peer.load(state, missing_ok=True)

for windows in DataLoader(Windows(steps * BATCH), BATCH):
    if peer.clock >= steps:
        break
    loss = window_loss(model, windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if peer.steps % 20 == 0:
        peer.save(state)

save(model, out)
