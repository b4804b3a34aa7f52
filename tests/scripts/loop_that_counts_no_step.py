"""A loop that changes the parameters itself, beside the attached optimizer, until a warning comes."""

import torch
from beside import HOST, end_with_the_test, say, status
from model import Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
told = []
while not told:
    end_with_the_test()
    for _ in range(50):
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(model(*batches.next()), trained)
        for p, gradient in zip(trained, gradients):  # noqa: B905
            p.data -= 0.0001 * gradient
    told = [notice for notice in status()["notices"] if notice.startswith("GD-321")]
say(told=told, do=status()["do"].get("GD-321"))
