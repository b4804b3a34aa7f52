"""A network and a loss with weights of its own, in one optimizer, attached as several modules."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
network, loss = model.backbone, model.head
parts = {"head": loss, "backbone": network, "teacher": model.teacher, "memory": model.memory}
optimizer = torch.optim.SGD([{"params": network.parameters()}, {"params": loss.parameters(), "lr": 0.1}], lr=0.05)
peer = gossipdp.attach(parts, optimizer)
meet("attached")
for _ in steps(exchanges=5):
    x, labels = batches.next()
    optimizer.zero_grad()
    loss(network(x), labels).backward()
    optimizer.step()
say(weights=loss.centers.flatten().tolist())
meet("trained")
