"""A loop written for Accelerate, with accumulation and a schedule: `accelerate launch accelerate_loop.py`."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from gossipdp.training.adapters import accelerate as gossip
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save

BATCH, ACCUMULATE = 4, 2
steps, out = options()
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE, mixed_precision="bf16")
model = build_model("0.25M")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
data = Windows(steps * BATCH * ACCUMULATE * accelerator.num_processes)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(data, BATCH), schedule)
peer = gossip.attach(accelerator, model, optimizer, loader)

for windows in loader:
    with accelerator.accumulate(model):
        loss = window_loss(model, windows)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            accelerator.log({"loss": loss.item()})
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

if accelerator.is_main_process:
    save(accelerator.unwrap_model(model), out)
accelerator.end_training()
