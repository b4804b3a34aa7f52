"""The readers of one training group at the daemon: all ranks get the same blocks in the same order, pass by pass.

One `for` loop over the data is a pass: blocks of the network's epoch, and those left over of the epoch before. Each
rank has the same number of readers, which slots tell apart. Keys number a reader's blocks in each pass. The first rank
that asks for a key causes a lease, and the other ranks get the same block. A block is finished once every rank has used
its part. It is released if a rank leaves without having used its part. Nothing here may know a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.data.blocks import Lease

__all__ = ["Passes", "Place"]

KEPT_PASSES: Final = 3
"""latest passes whose answers are remembered"""
Place: TypeAlias = tuple[int, int]
"""rank and slot of a reader"""


@dataclass(slots=True)
class _Reader:
    number: int = 0
    """number of its present pass"""
    over: bool = False
    """it has reached the end of the pass"""
    open: dict[Lease, None] = field(default_factory=dict)
    """blocks it got and has not reported as used"""


@dataclass(slots=True)
class _Answer:
    lease: Lease | None
    asked: set[int] = field(default_factory=set)
    """ranks that asked"""


@dataclass(slots=True)
class _Part:
    used: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    """ranks that left, or went on, without using it"""


class Passes:
    """One group of readers' passes over a data set.

    Args:
        world: number of ranks.
        epoch: returns the network's epoch.
        lease: returns the next block for this host. Args: the latest epoch, the first number or -1, and whether a block
            that another peer has open will do.
        finish: called for a block that every rank has used.
        release: called for a block that some rank has not used. Each lease is finished or released once.
    """

    def __init__(
        self,
        world: int,
        *,
        epoch: Callable[[], int],
        lease: Callable[[int, int, bool], Lease | None],
        finish: Callable[[Lease], None],
        release: Callable[[Lease], None],
    ) -> None:
        self.world = world
        self._epoch, self._lease, self._finish, self._release = epoch, lease, finish, release
        self._readers: dict[Place, _Reader] = {}
        self._epochs: dict[int, int] = {}
        """epoch of each pass"""
        self._begun: set[int] = set()
        """passes in which some reader got a block"""
        self._ended: set[int] = set()
        """passes whose end some reader has reached"""
        self._answers: dict[tuple[int, int, int], _Answer] = {}
        """by pass, slot and key"""
        self._parts: dict[Lease, _Part] = {}

    def begin(self, place: Place, number: int = 0) -> tuple[int, int]:
        """The reader's next pass, or pass `number` again. Returns its number and its epoch."""
        reader = self._readers.setdefault(place, _Reader())
        if number and number == reader.number and number in self._epochs:
            return number, self._epochs[number]
        self._leave(place, reader)
        reader.number, reader.over = number or reader.number + 1, False
        if reader.number not in self._epochs:
            self._epochs[reader.number] = self._epoch_of(reader.number)
            self._forget(reader.number - KEPT_PASSES)
        return reader.number, self._epochs[reader.number]

    def next(self, place: Place, key: int, first: int) -> Lease | None:
        """The block for this key; None if the pass is over.

        Raises:
            RemoteProtocolError: the reader's pass is forgotten, or has never begun.
        """
        rank, slot = place
        reader = self._readers.get(place)
        if reader is None or reader.number not in self._epochs:
            raise RemoteProtocolError("a reader of data is in no pass that is known")
        answer = self._answers.get((reader.number, slot, key))
        if answer is None:
            if reader.over:
                return None
            answer = self._answers[reader.number, slot, key] = _Answer(self._take(reader.number, first))
        answer.asked.add(rank)
        if answer.lease is None:
            reader.over = True
            self._ended.add(reader.number)
            return None
        if len(answer.asked) == self.world:
            del self._answers[reader.number, slot, key]
        reader.open[answer.lease] = None
        self._parts.setdefault(answer.lease, _Part())
        return answer.lease

    def used(self, place: Place, lease: Lease) -> None:
        """This rank has used its part of the block."""
        reader = self._readers.get(place)
        if reader is not None and lease in reader.open:
            del reader.open[lease]
            self._settle(lease, place[0], used=True)

    def gone(self, place: Place, *, used: bool) -> None:
        """This reader is gone. used: it has used the blocks it got in a pass that is over."""
        reader = self._readers.get(place)
        if reader is not None:
            reader.over = reader.over and used
            self._leave(place, reader)

    def close(self) -> None:
        """The whole group is gone."""
        for lease in list(self._parts):
            del self._parts[lease]
            self._release(lease)
        self._answers.clear()

    def _take(self, number: int, first: int) -> Lease | None:
        latest = self._epochs[number]
        # An empty pass gets some block, or the training process would run through empty passes.
        empty = number not in self._begun
        found = self._lease(max(latest, self._epoch()) if empty else latest, first, empty)
        if found is not None:
            self._begun.add(number)
        return found

    def _epoch_of(self, number: int) -> int:
        epoch, before = self._epoch(), self._epochs.get(number - 1)
        if before is None:
            return epoch
        return min(epoch + 1, max(epoch, before + ((number - 1) in self._ended)))

    def _leave(self, place: Place, reader: _Reader) -> None:
        """Settle the blocks of the reader's pass: as used if it has reached the end, else as not used."""
        for lease in reader.open:
            self._settle(lease, place[0], used=reader.over)
        reader.open.clear()

    def _settle(self, lease: Lease, rank: int, *, used: bool) -> None:
        part = self._parts.get(lease)
        if part is None:
            return  # another reader settled it
        (part.used if used else part.left).add(rank)
        if len(part.used) == self.world:
            self._finish(lease)
        elif len(part.used | part.left) == self.world:
            self._release(lease)
        else:
            return
        del self._parts[lease]

    def _forget(self, number: int) -> None:
        for key in [key for key in self._answers if key[0] <= number]:
            del self._answers[key]
        for known in [known for known in self._epochs if known <= number]:
            del self._epochs[known]
        self._begun = {known for known in self._begun if known > number}
        self._ended = {known for known in self._ended if known > number}
