"""The ranks of one replica group as one peer: rank 0 alone talks to the daemon, all ranks change together.

What is to be done to the parameters is announced by rank 0 in a word, broadcast asynchronously over a Gloo group at
one step boundary and read by all ranks at the next: gradients have been reduced in between, so the word is there and
no step waits for it, and all ranks act at the same step. The values follow as fp32 and are applied by the same
arithmetic, so that replicas stay equal bit for bit. Nothing here may know the daemon.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from gossipdp import errors
from gossipdp.errors import GossipdpError
from gossipdp.training.layout import Layout
from gossipdp.training.session import Drain, Load, Order

__all__ = ["Announcement", "ReplicaGroup", "replica_group"]

PIECE: Final = 4 << 20
"""parameters of one broadcast"""
PATIENCE: Final = timedelta(days=30)
"""ranks wait for rank 0, which waits for the network's model: there is no limit that fits all"""
_NOTHING, _LOAD, _DRAIN = range(3)


class Announcement(msgspec.Struct, frozen=True):
    """What every rank knows of the network, as of the last word."""

    clock: int = 0
    samples: int = 0
    alone: bool = True
    lost_steps: int = 0
    period: int = 1
    """steps from this word to the next: a post costs 0.1 to 0.3 ms, and a drain may be late by a tenth of a round"""


class ReplicaGroup:
    """Collective: every rank makes one, and calls the same methods in the same order."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.leader = dist.get_rank() == 0
        self.world = dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        # The values travel where the tensors are: NCCL for CUDA, Gloo for the CPU.
        self._values_group: Any = dist.group.WORLD if layout.device.type == "cuda" else self._group
        self._work: Any = None
        self._word = torch.zeros(8, dtype=torch.int64)
        self._proposal: Order | None = None
        self._rest = 0
        """boundaries to pass before the next word"""
        self.announced = Announcement()

    def agree_on_start(self, error: GossipdpError | None) -> None:
        """Rank 0 has a model to start from, or an error: then every rank raises it."""
        known = [] if error is None else [type(error).__name__, error.code, error.cause, error.seen, error.do]
        text = msgspec.json.encode(known)
        length = torch.tensor([len(text)])
        dist.broadcast(length, 0, group=self._group)
        payload = torch.zeros(int(length), dtype=torch.uint8)
        if self.leader:
            payload.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(payload, 0, group=self._group)
        said = msgspec.json.decode(bytes(payload.tolist()), type=list[str])
        if error is not None:
            raise error
        if said:
            name, code, cause, seen, do = said
            raise getattr(errors, name)(code, cause, seen=seen, do=do)

    def due(self) -> bool:
        """Is a word to be posted at this boundary? Ask once at each, on every rank."""
        if self._rest:
            self._rest -= 1
            return False
        return True

    def agreed(self) -> tuple[bool, Order | None]:
        """What was announced at the last boundary, for all ranks to do now: (something is, rank 0's order)."""
        if self._work is None:
            return False, None
        self._work.wait()
        self._work = None
        _, _, _, clock, samples, alone, lost, period = self._word.tolist()
        self.announced = Announcement(clock, samples, bool(alone), lost, period)
        self._rest = period - 1
        return self._word[0].item() != _NOTHING, self._proposal

    def announce(self, order: Order | None, state: Announcement) -> None:
        """Post the word that is read at the next boundary; `order` and `state` are rank 0's."""
        self._proposal = order
        if self.leader:
            kind = _NOTHING if order is None else _LOAD if isinstance(order, Load) else _DRAIN
            spans = len(order.spans) if isinstance(order, Drain) else 1
            slot = order.slot if isinstance(order, Drain) else 0
            word = [kind, slot, spans, state.clock, state.samples, int(state.alone), state.lost_steps, state.period]
            self._word.copy_(torch.tensor(word))
        self._work = dist.broadcast(self._word, 0, group=self._group, async_op=True)

    def carry_out(self, order: Order | None) -> None:
        """Do what was announced, on all ranks; `order` is rank 0's."""
        kind, _, count, *_ = self._word.tolist()
        spans = torch.zeros(count, 2, dtype=torch.int64)
        if isinstance(order, Drain):
            spans.copy_(torch.tensor(order.spans, dtype=torch.int64).view(-1, 2))
        elif isinstance(order, Load):
            spans[0, 1] = self._layout.schema.size
        if count:
            dist.broadcast(spans, 0, group=self._group)
        change = self._layout.load if kind == _LOAD else self._layout.add
        values = None if order is None else torch.from_numpy(order.values)
        for start, stop in spans.tolist():
            for first in range(start, stop, PIECE):
                last = min(first + PIECE, stop)
                change(first, self._share(None if values is None else values[first:last], last - first))

    def begin(self, order: Order | None) -> None:
        """The first load, at once: all ranks stand at the same place."""
        self.announce(order, Announcement())
        _, order = self.agreed()
        self.carry_out(order)

    def settle(self) -> None:
        """Training is over: what was announced last is not done by any rank."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def _share(self, values: Tensor | None, length: int) -> Tensor:
        if values is None:
            values = torch.empty(length, dtype=torch.float32, device=self._layout.device)
        else:
            # Memory that CUDA knows is copied without waiting for the device; the stream keeps the order.
            on_cuda = self._layout.device.type == "cuda"
            values = values.to(self._layout.device, non_blocking=on_cuda and values.is_pinned())
        dist.broadcast(values, 0, group=self._values_group)
        return values


def replica_group(layout: Layout) -> ReplicaGroup | None:
    """The group this process is a rank of; None if it trains by itself.

    Raises:
        ConfigError: GD-306, torchrun started several ranks, and they do not know each other yet.
    """
    if dist.is_available() and dist.is_initialized():
        return ReplicaGroup(layout) if dist.get_world_size() > 1 else None
    world = os.environ.get("WORLD_SIZE", "1")
    if world.isdigit() and int(world) > 1:
        raise errors.ConfigError(
            "GD-306",
            "this is one of several ranks, and torch.distributed is not initialized",
            seen=f"WORLD_SIZE={world}",
            do="call torch.distributed.init_process_group before gossipdp.attach",
        )
    return None
