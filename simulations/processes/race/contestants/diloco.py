"""DiLoCo over Gloo: AdamW inside, one all-reduce in fp32 a round, an outer step of SGD with Nesterov momentum.

Outer learning rate 0.7 and momentum 0.9 are those of the paper (Douillard et al. 2023, arXiv 2311.08105). Its rounds
have 500 of 64,000 steps or more, and a run of the race has some hundreds. So a round has 50 steps, the least that its
ablation tries and gossipdp's default, or with `--round` more, where links are slow.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from simulations.processes.race.group import join_group

ROUND = 50
"""steps"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--round", type=int, default=ROUND, help="steps between two outer steps")
    trainer, options = join_group(parser)
    restored = trainer.restore()
    parameters = list(trainer.model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    outer = torch.nn.Parameter(parameters_to_vector(parameters).detach().clone())
    outer_optimizer = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    if restored:
        outer_optimizer.load_state_dict(restored["outer"])
    for _ in trainer.steps():
        if trainer.step % options.round:
            continue
        with torch.no_grad():
            progress = outer - parameters_to_vector(parameters)
            dist.all_reduce(progress)
            outer.grad = progress / dist.get_world_size()
            outer_optimizer.step()
            for parameter, value in zip(parameters, outer.split(sizes), strict=True):
                parameter.copy_(value.view_as(parameter))
        trainer.checkpoint(outer=outer_optimizer.state_dict())
        trainer.snapshot()


if __name__ == "__main__":
    main()
