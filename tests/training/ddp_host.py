"""One rank of a DDP host on the CPU, for test_replica_group: trains until told to stop, notes its parameters' bits."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.errors import GossipdpError
from gossipdp.training import session


class Model(nn.Module):
    """fp32, bf16 and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(24)
        self.middle = nn.Linear(24, 24, dtype=torch.bfloat16)
        self.last = nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.norm(self.first(x)).bfloat16()).float()
        result: torch.Tensor = self.last(hidden)
        return result


def bits(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def refusal(model: nn.Module) -> str:
    try:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except GossipdpError as error:
        return error.code
    return ""


def main() -> None:
    home, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    session.RETRY = 0.0  # type: ignore[misc]
    dist.init_process_group("gloo", init_method=f"file://{home}/rendezvous", rank=rank, world_size=2)
    nobody = refusal(nn.Linear(2, 2)) if os.environ["GOSSIPDP_HOME"] != str(home) else ""
    torch.manual_seed(0)
    model = Model()
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    peer = gossipdp.attach(replica, optimizer, home=home, samples_per_step=4, timeout=60)
    trail = [bits(model)]
    stop = torch.zeros(1)
    while not stop:
        optimizer.zero_grad()
        replica(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        trail.append(bits(model))
        if rank == 0:
            stop += (home / "stop").exists()
        dist.broadcast(stop, 0)
    known = [peer.alone, peer.lost_steps > 0]
    peer.detach()
    sharded = nn.Linear(4, 4)
    fully_shard(sharded)
    told = {
        "trail": trail,
        "known": known,
        "after": peer.alone,
        "step": peer.step,
        "nobody": nobody,
        "sharded": refusal(sharded),
        "first.weight": model.first.weight.flatten().tolist(),
    }
    (home / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
