"""A schedule around the optimizer, as in the annotated transformer. The script attaches it, then the one inside."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp


class NoamOpt:
    def __init__(self, optimizer):
        self.optimizer, self._steps = optimizer, 0

    def step(self):
        self._steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, self._steps / 10)
        self.optimizer.step()


model, batches = made(HOST), Batches(HOST)
optimizer = NoamOpt(torch.optim.AdamW(model.parameters()))
try:
    gossipdp.attach(model, optimizer)
except gossipdp.GossipdpError as error:
    say(refused=error.code, do=error.do)
peer = gossipdp.attach(model, optimizer.optimizer)
meet("attached")
for _ in steps(exchanges=2):
    model.zero_grad()
    model(*batches.next()).backward()
    optimizer.step()
say(alone=peer.alone)
