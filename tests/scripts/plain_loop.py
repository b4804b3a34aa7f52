"""A usual loop: AdamW, two hosts."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
peer = gossipdp.attach(model, optimizer)
meet("attached")
for _ in steps(exchanges=5):
    loss = model(*batches.next())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
say(alone=peer.alone, loss=loss.item(), weights=model.head.centers.flatten().tolist())
meet("trained")
peer.detach()
