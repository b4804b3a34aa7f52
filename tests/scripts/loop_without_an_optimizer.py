"""A loop that changes the parameters itself and calls peer.step()."""

import torch
from beside import HOST, meet, say, steps
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
peer = gossipdp.attach(model)
meet("attached")
made_steps = 0
for _ in steps(exchanges=5):
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(model(*batches.next()), trained)
    for p, gradient in zip(trained, gradients):  # noqa: B905
        p.data -= 0.05 * gradient
    peer.step()
    made_steps += 1
say(steps=peer.steps, made=made_steps, weights=model.head.centers.flatten().tolist())
meet("trained")
