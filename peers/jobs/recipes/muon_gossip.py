"""Muon for the matrices and AdamW for the rest, two optimizers in one loop: `python muon.py`."""

import torch
from torch.utils.data import DataLoader

import gossipdp
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save, size

BATCH = 8
steps, out = options()
model = build_model(size())
matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
of_muon = {id(matrix) for matrix in matrices}
others = [parameter for parameter in model.parameters() if id(parameter) not in of_muon]
# With this factor a step is as long as one of AdamW, so both take the same learning rate.
muon = torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
adamw = torch.optim.AdamW(others, lr=1e-3)
peer = gossipdp.attach(model, [muon, adamw], samples_per_step=BATCH)

for windows in DataLoader(Windows(steps * BATCH), BATCH):
    loss = window_loss(model, windows)
    for optimizer in (muon, adamw):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (muon, adamw):
        optimizer.step()

save(model, out)
