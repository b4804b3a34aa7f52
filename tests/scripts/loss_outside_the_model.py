"""A loss with a weight of its own, in the same optimizer; the attached model does not hold it."""

import torch
from beside import HOST, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
scale = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [scale]}], lr=0.05)
gossipdp.attach(model, optimizer)
for step in steps(at_least=10):
    optimizer.zero_grad()
    (scale.square() * model(*batches.next())).backward()
    optimizer.step()
    say(step=step)
