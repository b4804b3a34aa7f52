"""What a sampler and a stream share: passes, their numbers, and how to go on in the middle of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.runtime import link as links
from gossipdp.training.adapters import taken_apart
from gossipdp.training.data.plan import Plan
from gossipdp.training.data.reader import Reader
from gossipdp.training.ranks.collectives import several_ranks

__all__ = ["Passes", "ReadingGroup"]

T = TypeVar("T")
AHEAD: Final = 256
"""samples that a loader holds ready, by default"""


class ReadingGroup(NamedTuple):
    """The replica group as its readers know it. Made in the main process, and copied into loader processes."""

    id: bytes
    """16 random bytes"""
    world: int
    rank: int
    home: Path | None
    """the peer's home; None while gossip is off"""

    @classmethod
    def here(cls, home: str | os.PathLike[str] | None) -> ReadingGroup:
        """This process's group. Collective if there are several ranks.

        Raises:
            ConfigError: GD-306, torch.distributed is not initialized.
        """
        drawn = torch.frombuffer(bytearray(os.urandom(16)), dtype=torch.uint8)
        world, rank = 1, 0
        if several_ranks():
            world, rank = dist.get_world_size(), dist.get_rank()
            group = dist.new_group(backend="gloo")
            dist.broadcast(drawn, 0, group=group)
            dist.destroy_process_group(group)
        place: Path | None = links.default_home() if home is None else links.expanded(home)
        if os.environ.get("GOSSIPDP_OFF", "").strip().lower() not in ("", "0", "false", "no"):
            place = None
        return cls(bytes(drawn.tolist()), world, rank, place)

    def reader(self, plan: Plan, slot: int, slots: int, ahead: int) -> Reader:
        """Reader number `slot` of this rank's `slots`."""
        group = links.Group(self.id, self.world, self.rank, slot, plan.digest, plan.name, plan.blocks)
        return Reader(plan, group, slots, self.home, ahead)


class Passes:
    """The passes of one reader, and their state.

    Args:
        plan: how an epoch is cut.
        group: the group that reads.
        ahead: samples that the loader holds ready, at most; None: `AHEAD`.

    Raises:
        DataError: GD-309, `ahead` is negative.
    """

    def __init__(self, plan: Plan, group: ReadingGroup, ahead: int | None) -> None:
        self.plan, self._group = plan, group
        self._ahead = AHEAD if ahead is None else ahead
        if self._ahead < 0:
            raise DataError("GD-309", "a loader cannot hold fewer than 0 samples ready", seen=f"ahead={ahead}")
        self._reader: Reader | None = None
        self._next_epoch = 0
        self._skip = 0
        """samples of the next pass that were used before"""
        self._whole = False
        """this is a copy, and the original knew that its loader gives each rank a part"""

    @property
    def epoch(self) -> int:
        """Epoch of the pass under way, or of the last one; the network's, if there is one.

        Where loader processes read a stream, only they know the network's epoch. This is what `set_epoch` said then.
        """
        return self._next_epoch if self._reader is None else self._reader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over `epoch`.

        With a network its epoch counts, and this changes nothing. Alone, a stream that loader processes read comes in
        the same order again unless this is called.
        """
        if epoch != self._next_epoch:
            self._next_epoch, self._skip = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """How far this process has read. With a network, the daemon remembers more than this."""
        used = self._skip if self._reader is None else self._reader.used
        return {"data": self.plan.digest.hex(), "epoch": self.epoch, "used": used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`: with a network at samples that no peer has read, alone after the used ones.

        Raises:
            DataError: GD-309, the state is of other data.
        """
        if state.get("data") != self.plan.digest.hex():
            raise DataError(
                "GD-309",
                "this state belongs to other data",
                seen=f"the state is of data {state.get('data')}, not {self.plan.digest.hex()}",
                do="use the same data set, name, block and seed as before",
            )
        self._next_epoch, self._skip = int(state["epoch"]), int(state["used"])
        if self._reader is not None:
            self._reader.bye()
            self._reader = None

    def _begin(self, slot: int, slots: int) -> Reader:
        """Begin a pass as reader number `slot` of this rank's `slots`."""
        if self._reader is None:
            self._reader = self._group.reader(self.plan, slot, slots, self._ahead)
        self._reader.begin(self._next_epoch, whole=self._is_taken_apart())
        return self._reader

    def _is_taken_apart(self) -> bool:
        """True if the loader gives each rank a part, so that all ranks must read the same."""
        return self._whole or (self._group.world > 1 and taken_apart(self))

    def _walk(self, reader: Reader, blocks: Iterable[tuple[Lease, Iterable[T]]]) -> Iterator[T]:
        """This rank's samples of the blocks that all ranks read."""
        skip, self._skip = (self._skip if reader.alone else 0), 0
        for lease, samples in blocks:
            for sample in reader.share(samples):
                if reader.handed >= skip:
                    yield sample
            reader.handed_out(lease)
        yield from reader.fill()
        self._next_epoch = reader.epoch + 1
