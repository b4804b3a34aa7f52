"""Two ranks without gossip that save, and other replicas that go on from the file: `host_of_state.py RANK FOLDER`.

Writes what happened to FOLDER/rankRANK.json.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.training.attachment import Attachment

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


def replica(kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Attachment]:
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, gossipdp.attach(model, optimizer)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(10 * steps + RANK)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def vector(model: nn.Module) -> torch.Tensor:
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return torch.cat([each.detach().flatten() for each in whole])


def refused(peer: Attachment, path: Path) -> str:
    try:
        peer.load(path)
    except gossipdp.GossipdpError as error:
        return error.code
    return ""


def resumed(kind: str) -> dict[str, object]:
    path = FOLDER / f"{kind}.safetensors"
    model, optimizer, peer = replica(kind, 0)
    train(model, optimizer, 3)
    peer.save(path, extra={"epoch": 1})
    peer.detach()
    again, other, peer = replica(kind, 1)
    extra = peer.load(path)
    train(model, optimizer, 2)
    train(again, other, 2)
    told = {"extra": extra, "steps": peer.steps, "equal": torch.equal(vector(model), vector(again))}
    codes = [refused(peer, FOLDER / "none")]
    if RANK == 0:
        path.write_bytes(b"damaged")
    dist.barrier()
    codes.append(refused(peer, path))
    peer.detach()
    return told | {"codes": codes}


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.FileStore(str(FOLDER / "store"), 2), rank=RANK, world_size=2)
    told = {kind: resumed(kind) for kind in ("ddp", "fsdp")}
    (FOLDER / f"rank{RANK}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
