"""One process with a hand-written loop: `python plain.py`."""

import torch
from torch.utils.data import DataLoader

from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save, size

BATCH = 8
steps, out = options()
model = build_model(size())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for windows in DataLoader(Windows(steps * BATCH), BATCH):
    loss = window_loss(model, windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

save(model, out)
