"""A model sharded over the ranks of one host by FSDP2: `torchrun --standalone --nproc-per-node 2 fsdp.py`."""

import os

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import gossipdp
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options

BATCH = 4
steps, out = options()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = build_model("0.25M").to(device)
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
peer = gossipdp.attach(model, optimizer, samples_per_step=BATCH)
data = Windows(steps * BATCH * dist.get_world_size())

for windows in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
    loss = window_loss(model, windows.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0 and out is not None:
    save_file(weights, out)
dist.destroy_process_group()
