"""The ranks of one host under DistributedDataParallel: `torchrun --standalone --nproc-per-node 2 ddp.py`."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import gossipdp
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save

BATCH = 4
steps, out = options()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = DistributedDataParallel(build_model("0.25M").to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
peer = gossipdp.attach(model, optimizer, samples_per_step=BATCH)
data = Windows(steps * BATCH * dist.get_world_size())

for windows in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
    loss = window_loss(model, windows.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    save(model.module, out)
dist.destroy_process_group()
