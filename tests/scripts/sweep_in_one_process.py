"""A notebook: a cell with attach is run again, a data loader is forked, then a sweep makes model after model."""

import atexit
import os

import torch
from beside import HOST, say, steps
from model import Batches, made

import gossipdp


def cell():
    model = made(HOST)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)
    return model, optimizer, gossipdp.attach(model, optimizer)


def train(model, optimizer):
    batches = Batches(HOST)
    for _ in steps(at_least=20):
        optimizer.zero_grad()
        model(*batches.next()).backward()
        optimizer.step()


def trial():
    model, optimizer, peer = cell()
    train(model, optimizer)
    return peer.steps


model, optimizer, peer = cell()
if not (child := os.fork()):
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(child, 0)
train(model, optimizer)
say(after_the_fork=peer.alone)
try:
    model, optimizer, peer = cell()
except gossipdp.GossipdpError as error:
    say(again=error.code, cause=error.cause, do=error.do)
peer.detach()
say(sweep=[trial() for _ in range(3)])
