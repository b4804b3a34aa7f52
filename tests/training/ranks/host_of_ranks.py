"""One rank of a host on the CPU, for test_group: trains until told to stop, notes its parameters' bits.

host_of_ranks.py HOME ddp|zero|fsdp|offload [STEP]

zero: DDP with ZeroRedundancyOptimizer, which takes one dtype. offload: FSDP2 with CPUOffloadPolicy. After STEP steps
rank 1 dies, as by the kernel's hand.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.errors import GossipdpError
from gossipdp.training import connection
from gossipdp.training.ranks.actions import GroupActions


class Model(nn.Module):
    """fp32, `other` and a batch norm; rows that do not divide evenly, and fewer rows than ranks."""

    def __init__(self, other: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(16, 23)
        self.norm = nn.BatchNorm1d(23)
        self.middle = nn.Linear(23, 24, dtype=other)
        self.last = nn.Linear(24, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.norm(self.first(x)).to(self.middle.weight.dtype)).float()
        result: torch.Tensor = self.last(hidden)
        return result


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def bits(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(whole(tensor).contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: whole(parameter).float().flatten().tolist() for name, parameter in model.named_parameters()}


def optimizer_of(replica: nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind != "zero":
        return torch.optim.AdamW(replica.parameters(), lr=1e-3)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(replica.parameters(), torch.optim.AdamW, lr=1e-3)


def evaluate(replica: nn.Module) -> None:
    """A forward pass without a backward pass, after which FSDP2's root holds whole parameters."""
    replica.eval()
    with torch.no_grad():
        replica(torch.ones(2, 16))
    replica.train()


class BufferDiary:
    """The buffers' bits before and after every change by the network. Between, each rank has its own averages."""

    def __init__(self, model: nn.Module) -> None:
        self.trail: list[str] = []
        """before and after, in turn"""
        change = GroupActions.change

        def noted(actions: GroupActions, *arguments: Any) -> None:
            before = bits(model.buffers())
            change(actions, *arguments)
            self.trail += [before, bits(model.buffers())]

        GroupActions.change = noted  # type: ignore[method-assign]


def refusal(model: nn.Module) -> str:
    try:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except GossipdpError as error:
        return error.code
    return ""


def refusals() -> dict[str, str]:
    """Error code by kind of model that cannot be exchanged."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = nn.Linear(4, 4, bias=False)
    columns.weight = nn.Parameter(distribute_tensor(columns.weight.detach(), mesh, [Shard(1)]))
    return {
        "no daemon": refusal(nn.Linear(2, 2)),
        "columns": refusal(columns),
        "fsdp 1": refusal(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))),
    }


def main() -> None:
    home, kind, rank, world = Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dies_at = int(sys.argv[3]) if sys.argv[3:] and rank == 1 else 0
    torch.set_num_threads(1)
    connection.RETRY = 0.0  # type: ignore[misc]
    meet = "env://" if "TORCHELASTIC_RUN_ID" in os.environ else f"file://{home}/rendezvous"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    refused = refusals()
    torch.manual_seed(0)
    model = Model(torch.float32 if kind == "zero" else torch.bfloat16)
    if kind in ("fsdp", "offload"):
        policy = CPUOffloadPolicy(pin_memory=False) if kind == "offload" else OffloadPolicy()
        fully_shard(model.middle, offload_policy=policy)
        fully_shard(model, offload_policy=policy)
        replica: nn.Module = model
    else:
        replica = DistributedDataParallel(model)
    optimizer = optimizer_of(replica, kind)
    generator = torch.Generator().manual_seed(100 + rank)
    gathered = DTensor.full_tensor

    def forbidden(*_: object) -> torch.Tensor:
        raise AssertionError("a whole parameter was gathered on one rank")

    DTensor.full_tensor = forbidden  # type: ignore[method-assign, assignment]
    buffers = BufferDiary(model)
    evaluate(replica)
    peer = gossipdp.attach(replica, optimizer, home=home, samples_per_step=4)
    kept = home / "moments.safetensors"
    resumed = 0.0
    DTensor.full_tensor = gathered  # type: ignore[method-assign]
    began = {"clock": peer.clock, "weights": values(model)}
    if peer.load(kept, missing_ok=True) is not None:
        resumed = float(peer.state_dict()["first.weight::step"]) if rank == 0 else peer.state_dict().get("none", -1.0)
    trail, stop = [], torch.zeros(1)
    while not stop:
        DTensor.full_tensor = gathered  # type: ignore[method-assign]
        trail.append(bits(model.parameters()))
        DTensor.full_tensor = forbidden  # type: ignore[method-assign, assignment]
        optimizer.zero_grad()
        replica(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        if peer.steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if peer.steps % 4 == 0 and kind != "zero":
            evaluate(replica)
            peer.save(kept)
        if rank == 0:
            stop += (home / "stop").exists()
        dist.broadcast(stop, 0)
    known = [peer.alone, peer.lost_steps > 0]
    DTensor.full_tensor = gathered  # type: ignore[method-assign]
    weights = values(model)
    peer.detach()
    told = {
        "trail": trail,
        "buffers": buffers.trail,
        "known": known,
        "after": peer.alone,
        "step": peer.steps,
        "refused": refused,
        "began": began,
        "weights": weights,
        "resumed": resumed,
    }
    (home / f"rank{rank}.json").write_text(json.dumps(told))
    group = dist.group.WORLD  # to be let go after DDP, which would wait for its threads with the GIL held
    dist.destroy_process_group()
    del replica, peer, group


if __name__ == "__main__":
    main()
