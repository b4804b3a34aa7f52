"""SAM used by its two phases: ascend, compute the gradient there, step the base. Its own step() is not called."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = 0.05 / (torch.stack([each.norm() for each in gradients]).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale)
        self.zero_grad()

    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


model, batches = made(HOST), Batches(HOST)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
peer = gossipdp.attach(model, optimizer)
meet("attached")
made_steps = 0
for _ in steps(exchanges=5):
    batch = batches.next()
    model(*batch).backward()
    optimizer.first_step()
    model(*batch).backward()
    optimizer.second_step()
    made_steps += 1
say(steps=peer.steps, made=made_steps, weights=model.head.centers.flatten().tolist())
meet("trained")
