"""Collective operations of a replica group: numbers over Gloo, values where the tensors are.

Every rank makes the same calls in the same order. Nothing here knows what the tensors mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["Collectives", "RankLost", "several_ranks", "whole_numbers"]

START_WITHIN: Final = timedelta(days=30)
"""limit while ranks wait for the leader to get the network's model; no shorter limit fits all networks"""
ANSWER_WITHIN: Final = timedelta(hours=1)
"""limit for a rank that evaluates or saves; the end of a rank that died is noticed at once"""
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""the name from torch 2.13 on, or the one before"""


class RankLost(RuntimeError):
    """Another rank is gone, or does not come to this step."""


@contextmanager
def _lost_ranks_raise() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(str(error).partition("\n")[0]) from error


class Collectives:
    """The group's channels. Made by every rank at once.

    Args:
        device: where the model's tensors are.

    Raises:
        RankLost: in every method, another rank does not take part.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._patient: Any = dist.new_group(backend="gloo", timeout=START_WITHIN)
        self.numbers: Any = dist.new_group(backend="gloo", timeout=ANSWER_WITHIN)
        """the process group for everything but values"""
        # Values travel where the tensors are: NCCL for CUDA, Gloo for the CPU.
        self._values: Any = dist.group.WORLD if device.type == "cuda" else self.numbers

    def post(self, tensor: Tensor) -> Any:
        """Begin to broadcast the leader's `tensor`. `finish` waits for it."""
        with _lost_ranks_raise():
            return dist.broadcast(tensor, 0, group=self.numbers, async_op=True)

    def finish(self, work: Any) -> None:
        """Wait for what `post` began."""
        with _lost_ranks_raise():
            work.wait()

    def broadcast(self, tensor: Tensor) -> None:
        """tensor := the leader's, on the CPU."""
        with _lost_ranks_raise():
            dist.broadcast(tensor, 0, group=self.numbers)

    def broadcast_values(self, tensor: Tensor) -> None:
        """tensor := the leader's, on the model's device."""
        with _lost_ranks_raise():
            dist.broadcast(tensor, 0, group=self._values)

    def broadcast_bytes(self, data: Buffer = b"", *, patient: bool = False) -> memoryview:
        """The leader's `data`; the other ranks pass nothing.

        Args:
            patient: the leader may come much later.
        """
        group = self._patient if patient else self.numbers
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8) if memoryview(data).nbytes else None
        length = whole_numbers([0 if mine is None else len(mine)])
        with _lost_ranks_raise():
            dist.broadcast(length, 0, group=group)
            payload = torch.zeros(int(length), dtype=torch.uint8, device="cpu") if mine is None else mine
            if len(payload):
                dist.broadcast(payload, 0, group=group)
        return payload.numpy().data

    def minimum(self, tensor: Tensor) -> None:
        """tensor := its minimum over all ranks, on the CPU."""
        with _lost_ranks_raise():
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.numbers)

    def maximum(self, tensor: Tensor) -> None:
        """tensor := its maximum over all ranks, on the CPU."""
        with _lost_ranks_raise():
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.numbers)

    def sum(self, tensor: Tensor) -> None:
        """tensor := its sum over all ranks, on the model's device."""
        with _lost_ranks_raise():
            dist.all_reduce(tensor, group=self._values)

    def union(self, numbers: Sequence[int]) -> list[int]:
        """All ranks' `numbers`, which are not negative, in ascending order."""
        most = whole_numbers([len(numbers)])
        self.maximum(most)
        mine = torch.full((int(most),), -1, dtype=torch.int64, device="cpu")
        mine[: len(numbers)] = whole_numbers(numbers)
        rows = [torch.empty_like(mine) for _ in range(self.world)]
        with _lost_ranks_raise():
            dist.all_gather(rows, mine, group=self.numbers)
        return sorted({number for row in rows for number in row.tolist()} - {-1})

    def gather(self, mine: Tensor) -> Tensor:
        """All ranks' `mine`, one row each, on its device."""
        rows = torch.empty(self.world * len(mine), dtype=mine.dtype, device=mine.device)
        with _lost_ranks_raise():
            _all_gather(rows, mine, group=self._values)
        return rows.view(self.world, len(mine))

    def barrier(self) -> None:
        """Wait for all ranks."""
        with _lost_ranks_raise():
            dist.barrier(group=self.numbers)


def whole_numbers(numbers: Sequence[Any]) -> Tensor:
    """`numbers`, nested or not, as int64 on the CPU, whatever the script's default device is."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def several_ranks() -> bool:
    """True if this process is one of several ranks.

    Raises:
        ConfigError: GD-306, torchrun started several ranks, and torch.distributed is not initialized.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    world = os.environ.get("WORLD_SIZE", "1")
    if world.isdigit() and int(world) > 1:
        raise ConfigError(
            "GD-306",
            "this is one of several ranks, and torch.distributed is not initialized",
            seen=f"WORLD_SIZE={world}",
            do="call torch.distributed.init_process_group before gossipdp.attach",
        )
    return False
