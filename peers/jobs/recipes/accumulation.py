"""Gradient accumulation and fp16 with a GradScaler: `python accumulation.py`."""

import torch
from torch.utils.data import DataLoader

from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save

BATCH, ACCUMULATE = 4, 2
steps, out = options()
device = "cuda" if torch.cuda.is_available() else "cpu"
# On a CPU bf16 is the half precision that autocast is fast in; the scaler does the same there, and is not needed.
half = torch.float16 if device == "cuda" else torch.bfloat16
model = build_model("0.25M").to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)

for number, windows in enumerate(DataLoader(Windows(steps * BATCH * ACCUMULATE), BATCH), 1):
    with torch.autocast(device, half):
        loss = window_loss(model, windows.to(device)) / ACCUMULATE
    scaler.scale(loss).backward()
    if number % ACCUMULATE == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

save(model, out)
