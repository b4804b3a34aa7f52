"""Excludes a queue that the network's other hosts average."""

import torch
from beside import HOST, say
from model import made

import gossipdp
from gossipdp.errors import MismatchError

model = made(HOST)
try:
    gossipdp.attach(model, torch.optim.AdamW(model.parameters(), lr=1e-3), exclude="memory.queue")
except MismatchError as error:
    say(code=error.code, seen=error.seen)
