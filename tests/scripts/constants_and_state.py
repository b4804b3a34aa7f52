"""Masks, position tables, an excluded queue, a flag, counters and a moving teacher; the second host comes later."""

import hashlib

import torch
import torch.nn.functional as F
from beside import HOST, meet, say, steps
from model import QUEUE, Batches, made

import gossipdp

model, batches = made(HOST), Batches(HOST)
backbone, memory, teacher = model.backbone, model.memory, model.teacher
if HOST:
    # The joiner's own constants are others; the network's hold.
    backbone.mask.mul_(0.5)
    backbone.positions.add_(1e-3)
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)


def constants():
    found = b"".join(each.numpy().tobytes() for each in (backbone.mask, backbone.lowest, backbone.positions))
    return hashlib.blake2b(found).hexdigest()


def tell():
    norms = memory.queue.norm(dim=0)
    say(
        constants=constants(),
        started=int(backbone.started),
        batches=int(backbone.norm.num_batches_tracked),
        at=int(memory.at),
        norms=[float(norms.min()), float(norms.max())],
        queue=memory.queue[0].tolist(),
        teacher=teacher.weight.flatten().tolist(),
    )


def train(**until):
    for _ in steps(**until):
        points, labels = batches.next()
        loss = model(points, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for follower, leader in zip(teacher.parameters(), backbone.leave.parameters(), strict=True):
                follower.data.mul_(0.9).add_(leader.data, alpha=0.1)
            keys, place = F.normalize(backbone(points), dim=1).T, int(memory.at)
            memory.queue[:, place : place + keys.shape[1]] = keys
            memory.at.fill_((place + keys.shape[1]) % QUEUE)


tell()
if HOST:
    meet("trained")
peer = gossipdp.attach(model, optimizer, exclude=["memory.queue"])
if not HOST:
    train(at_least=60)
    tell()
    meet("trained")
else:
    tell()
train(exchanges=5, at_least=20)
tell()
meet("done")
peer.detach()
