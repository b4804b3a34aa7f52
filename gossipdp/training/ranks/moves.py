"""What the ranks of a group move together between the shared memory and the model's tensors.

Of a tensor that all ranks hold (DDP, and the buffers under FSDP2), each rank brings its share from the shared memory,
and an all-gather gives every rank the rest. Of a sharded tensor each rank brings its own rows. The arithmetic is the
same on all ranks, so replicas stay equal bit for bit. Nothing here knows the daemon.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.training.ranks.collectives import Collectives
from gossipdp.training.ranks.comparison import Comparison, checksums
from gossipdp.training.tensors.layout import Layout

__all__ = ["GroupMoves"]

PIECE: Final = 4 << 20
"""parameters of one all-gather"""


class GroupMoves:
    """Every method is collective."""

    def __init__(self, layout: Layout, collectives: Collectives) -> None:
        self._layout, self._collectives = layout, collectives
        self._rank, self._world = collectives.rank, collectives.world

    def compare(self) -> Comparison | None:
        """Bring all ranks' checksums together. None if each rank holds another part of the model."""
        mine = checksums(self._layout)
        return Comparison(self._layout, self._collectives.gather(mine)) if len(mine) else None

    def spread(self, change: Callable[..., None], values: Tensor, spans: list[tuple[int, int]]) -> None:
        """Call `change` on every rank with those of `values` that it holds.

        Args:
            change: as `Layout.load` and `Layout.add`.
            values: the whole flat vector in shared memory.
            spans: elements [start, stop) to move.
        """
        if self._layout.sharded:
            for start, stop in spans:
                change(start, values[start:stop], rest=False)
        replicated = [run for span in spans for run in self._layout.replicated(*span)]
        for step in itertools.zip_longest(*(self._runs(rank, replicated) for rank in range(self._world))):
            runs = [run or (0, 0) for run in step]
            for (start, stop), part in zip(runs, self._gather(values, runs), strict=True):
                if start < stop:
                    change(start, part[: stop - start], shards=False)

    def _runs(self, rank: int, replicated: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The share that `rank` brings of replicated tensors, in pieces."""
        most = max(1, PIECE // self._world)
        for run in replicated:
            for start, stop in self._layout.own(*run, rank, self._world):
                for first in range(start, stop, most):
                    yield first, min(first + most, stop)

    def _gather(self, values: Tensor, runs: list[tuple[int, int]]) -> Tensor:
        """`values` at `runs`, one run per rank and row, padded at the end. Each rank brings its own to its device."""
        width = max(stop - start for start, stop in runs)
        start, stop = runs[self._rank]
        mine = torch.zeros(width, dtype=torch.float32, device=self._layout.device)
        if start < stop:
            self._layout.streams.send(values[start:stop], mine[: stop - start])
        return self._collectives.gather(mine)

    def share_buffers(self) -> None:
        """Buffers := the first rank's. Each rank has its own running averages between two corrections."""
        buffers = self._layout.buffers()
        if not buffers:
            return
        device = self._layout.device
        # As bytes: every dtype can travel so, and arrives bit for bit.
        everything = torch.cat([each.reshape(-1).view(torch.uint8).to(device) for each in buffers])
        self._collectives.broadcast_values(everything)
        if self._rank:
            parts = torch.split(everything, [each.numel() * each.element_size() for each in buffers])
            for each, part in zip(buffers, parts, strict=True):
                each.copy_(part.clone().view(each.dtype).view(each.shape))

    def load_state(self, state: Buffer) -> None:
        """Every rank loads the carried state that the daemon gave the leader; other ranks pass b""."""
        self._layout.carried.load(self._collectives.broadcast_bytes(state))
