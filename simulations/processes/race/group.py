"""A process group of Gloo across the hosts, as torchrun would make it, and the trainer of this host."""

from __future__ import annotations

import argparse
import time
from datetime import timedelta

import torch.distributed as dist

from simulations.processes.race.training import Trainer

__all__ = ["join_group"]

LOOK = 0.02
"""seconds"""
TOGETHER = 180.0
"""seconds within which all members come"""


def join_group(parser: argparse.ArgumentParser | None = None) -> tuple[Trainer, argparse.Namespace]:
    """Read the options of a member, join the group, and make the trainer of this host."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--store", required=True, help="host:port of rank 0")
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True, help="seconds")
    trainer, options = Trainer.of_command_line(parser)
    # A spare has started beforehand and waits for its life to begin.
    while options.life and not (options.folder / f"life-{options.life}").exists():
        time.sleep(LOOK)
    host, _, port = options.store.rpartition(":")
    together = timedelta(seconds=TOGETHER)
    # The store waits for slow starts, so that the time-out of collectives need not.
    first = options.host == 0
    store = dist.TCPStore(host, int(port), options.world, first, together, True)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group("gloo", store=store, rank=options.host, world_size=options.world, timeout=timeout)
    return trainer, options
