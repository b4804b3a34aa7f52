"""One of two training processes, for test_modes: SGD on its own half of every batch, and the weights it ends with.

training_sync.py OUT STEPS RANK gossip|ddp
"""

import select
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossipdp


def main() -> None:
    out, steps, rank, how = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            # A joiner gets the model in bfloat16. Both must begin with the same.
            parameter.copy_(parameter.bfloat16())
    replica: nn.Module = model
    if how == "ddp":
        dist.init_process_group("gloo", init_method=f"file://{out.parent}/rendezvous", rank=rank, world_size=2)
        replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    peer = gossipdp.attach(model, optimizer) if how == "gossip" else None
    if how == "gossip":
        # Both must make their first step from the same weights.
        out.with_suffix(".ready").touch()
        while len(list(out.parent.glob("*.ready"))) < 2:
            select.select([], [], [], 0.01)
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        x = torch.randn(16, 32, generator=generator)
        loss = (replica(x) - x[:, :8].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    if peer is not None:
        peer.detach()
    save_file(weights, out)


if __name__ == "__main__":
    main()
