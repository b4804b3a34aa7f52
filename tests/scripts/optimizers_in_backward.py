"""One optimizer per parameter, stepped by a hook when the gradient is ready, to save the memory of gradients."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters() if p.requires_grad}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step)
peer = gossipdp.attach(model, list(optimizers.values()))
meet("attached")
made_steps = 0
for _ in steps(exchanges=5):
    model(*batches.next()).backward()
    made_steps += 1
say(steps=peer.steps, made=made_steps, weights=model.head.centers.flatten().tolist())
meet("trained")
