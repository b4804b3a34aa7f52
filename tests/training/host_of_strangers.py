"""Two ranks that do not train one replica, for test_strangers: they go through some cases and note the outcomes.

host_of_strangers.py HOME CASE...
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.errors import GossipdpError
from gossipdp.training.ranks import collectives

HOME, RANK = Path(sys.argv[1]), int(os.environ["RANK"])
said: list[str] = []


class Ear(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(record.getMessage())


def refused(model: nn.Module) -> dict[str, Any]:
    try:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=HOME)
    except GossipdpError as error:
        return {"code": error.code, "seen": error.seen, "do": error.do}
    return {}


def stages() -> dict[str, Any]:
    """Stages of a pipeline, each of the same size."""
    return refused(nn.ModuleDict({f"stage{RANK}": nn.Linear(4, 4)}))


def sizes() -> dict[str, Any]:
    return refused(nn.Linear(4, 4 + RANK))


def seeds() -> dict[str, Any]:
    """Replicas that were never made equal."""
    torch.manual_seed(RANK)
    return refused(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4)))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def apart() -> dict[str, Any]:
    """Equal at first, without a reduction of gradients."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = gossipdp.attach(model, optimizer, home=HOME)
    torch.manual_seed(RANK)
    while peer.steps < 5 or (not peer.alone and peer.steps < 200):
        descend(model, optimizer)
    alone, step, clock = peer.alone, peer.steps, peer.clock
    for _ in range(10):
        descend(model, optimizer)
    gained = peer.clock - clock
    peer.detach()
    return {"alone": alone, "step": step, "gained": gained, "lost": peer.lost_steps}


def uneven() -> dict[str, Any]:
    """The first rank has fewer inputs, and DDP shadows it."""
    collectives.ANSWER_WITHIN = timedelta(seconds=1)  # type: ignore[misc]
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = gossipdp.attach(model, optimizer, home=HOME)
    with model.join():
        for _ in range(20 if RANK else 6):
            descend(model, optimizer)
    alone = peer.alone
    peer.detach()
    return {"alone": alone, "step": peer.steps}


def descend(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()


CASES: dict[str, Callable[[], dict[str, Any]]] = {each.__name__: each for each in (stages, sizes, seeds, apart, uneven)}


def main() -> None:
    logging.getLogger("gossipdp").addHandler(Ear())
    dist.init_process_group("gloo", init_method=f"file://{HOME}/rendezvous", rank=RANK, world_size=2)
    told = {}
    for name in sys.argv[2:]:
        said.clear()
        told[name] = {**CASES[name](), "said": "\n".join(said)}
    (HOME / f"rank{RANK}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
