"""One rank of a host on the CPU, for test_inherited_ranks: notes the optimizer's state after each step.

host_of_moments.py HOME ddp|fsdp STEPS
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gossipdp


def main() -> None:
    home, kind, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{home}/rendezvous-{kind}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 23), nn.Tanh(), nn.Linear(23, 301), nn.Tanh(), nn.Linear(301, 1))
    if kind == "fsdp":
        fully_shard(model[2])
        fully_shard(model)
        replica: nn.Module = model
    else:
        replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    peer = gossipdp.attach(replica, optimizer, home=home)

    def note(step: int) -> None:
        state = peer.state_dict()
        if rank == 0:
            save_file(state, home / f"{kind}-{step}.safetensors")

    if not steps:
        note(0)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        data = torch.randn(8, 16, generator=generator)
        (replica(data) - data[:, :1]).pow(2).mean().backward()
        optimizer.step()
        note(step)
    peer.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
