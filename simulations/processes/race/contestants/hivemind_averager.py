"""Local SGD by hivemind's `DecentralizedAverager`, beside training: no step waits for an averaging.

It races only where hivemind is installed. Every `--round` steps, once the last averaging is over, a host looks for a
group of all. What an averaging has changed is added to the parameters, as hivemind's `TrainingAverager` does, so no
local step is lost. Values travel in fp16, as its configuration guide advises; matchmaking and time-outs are those of
`hivemind.Optimizer`. That class is not raced: with local updates and averaging in the background, its next step waits
for the averaging (hivemind 1.1.12, `TrainingStateAverager.step`).
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.compression import Float16Compression

from simulations.processes.race.rules import HOSTS
from simulations.processes.race.training import Trainer

LOOK = 0.05
MATCHMAKING, TIMEOUT = 15.0, 60.0
"""seconds: longest search for a group, and of a whole averaging"""


def join(options: argparse.Namespace) -> DHT:
    """hivemind's network. The first host leaves its address in a file for the others."""
    there = options.folder / "hivemind"
    while options.host and not there.exists():
        time.sleep(LOOK)
    known = there.read_text().split() if options.host else None
    dht = DHT(initial_peers=known, host_maddrs=[f"/ip4/{options.address}/tcp/0"], start=True)
    if not options.host:
        new = there.with_suffix(".new")
        new.write_text("\n".join(map(str, dht.get_visible_maddrs())))
        os.replace(new, there)
    return dht


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--round", type=int, required=True, help="steps between the starts of two averagings, at least")
    trainer, options = Trainer.of_command_line(parser)
    parameters = list(trainer.model.parameters())
    averager = DecentralizedAverager(
        [parameter.detach().clone() for parameter in parameters],
        join(options),
        prefix="race",
        target_group_size=HOSTS,
        min_matchmaking_time=MATCHMAKING,
        next_chunk_timeout=MATCHMAKING,
        allreduce_timeout=TIMEOUT,
        compression=Float16Compression(),
        start=True,
    )
    averaging, due, before = None, options.round, []
    for _ in trainer.steps():
        if averaging is not None and averaging.done():
            if not averaging.cancelled() and averaging.exception() is None:
                with torch.no_grad(), averager.get_tensors() as after:
                    for parameter, new, old in zip(parameters, after, before, strict=True):
                        parameter.add_(new - old)
            averaging = None
        if averaging is None and trainer.step >= due:
            due = trainer.step + options.round
            with averager.get_tensors() as tensors:
                for tensor, parameter in zip(tensors, parameters, strict=True):
                    tensor.copy_(parameter.detach())
                before = [tensor.clone() for tensor in tensors]
            averaging = averager.step(timeout=TIMEOUT, wait=False)


if __name__ == "__main__":
    main()
