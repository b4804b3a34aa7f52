"""A schedule that makes the optimizer anew during training, as ReLoRA does."""

import gc

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
peer = gossipdp.attach(model, optimizer)
meet("attached")


def train(exchanges):
    count = 0
    for _ in steps(exchanges=exchanges):
        optimizer.zero_grad()
        model(*batches.next()).backward()
        optimizer.step()
        count += 1
    return count


first = train(exchanges=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
gc.collect()
second = train(exchanges=5)
say(steps=peer.steps, made=first + second, weights=model.head.centers.flatten().tolist())
meet("trained")
