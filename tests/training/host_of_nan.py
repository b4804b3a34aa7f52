"""One rank of a host on the CPU, for test_healing: two bad samples, some steps apart.

host_of_nan.py HOME ddp|fsdp
"""

import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.errors import GossipdpError
from gossipdp.training import connection


def sums(model: nn.Module) -> list[float]:
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()]
    return [float(each.detach().double().sum()) for each in whole]


def main() -> None:
    home, kind, rank = Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
    torch.set_num_threads(1)
    connection.RETRY = 0.0  # type: ignore[misc]
    dist.init_process_group("gloo", init_method=f"file://{home}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Linear(8, 6)
    replica: nn.Module = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    peer = gossipdp.attach(replica, optimizer, home=home)
    told: dict[str, object] = {"sums": [], "code": ""}
    trail: list[list[float]] = []
    healed_at = 0
    try:
        while peer.steps < 2000:
            # Of one rank alone: gradients are reduced, so all ranks have it.
            bad = peer.steps in (5, healed_at + 20) and rank == 1 and (peer.steps == 5 or healed_at)
            x = torch.full((4, 8), math.nan) if bad else torch.randn(4, 8)
            optimizer.zero_grad()
            replica(x).square().mean().backward()
            optimizer.step()
            trail.append(sums(model))
            if peer.steps > 6 and not healed_at and all(map(math.isfinite, trail[-1])):
                healed_at = peer.steps
    except GossipdpError as error:
        told["code"] = error.code
    told |= {"sums": trail[-1], "healed": healed_at, "trail": [row for row in trail if all(map(math.isfinite, row))]}
    (home / f"rank{rank}.json").write_text(json.dumps(told))
    peer.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
