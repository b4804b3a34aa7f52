"""The readers of one training group at the daemon: all ranks get the same blocks in the same order, pass by pass.

A pass is what one `for` loop over the data goes through: blocks of the network's epoch, with what is left over of the
one before. Each rank has the same number of readers, told apart by their slots; a reader's blocks are numbered by keys
in each pass. Whoever is the first to ask for a key brings a lease about, and the others are told the same. A block is
finished once every rank has used its part, and given up if one of them went without. Nothing here may know a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.data.blocks import Lease

__all__ = ["Passes", "Place"]

KEPT_PASSES: Final = 3
"""passes of which answers are remembered"""
Place: TypeAlias = tuple[int, int]
"""rank and slot of a reader"""


@dataclass(slots=True)
class _Reader:
    number: int = 0
    """of the pass it is in"""
    over: bool = False
    """it has come to the pass's end"""
    open: dict[Lease, None] = field(default_factory=dict)
    """given to it, and not said to be used"""


@dataclass(slots=True)
class _Answer:
    lease: Lease | None
    asked: set[int] = field(default_factory=set)
    """ranks"""


@dataclass(slots=True)
class _Part:
    used: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    """ranks that went, or went on, without having used it"""


class Passes:
    """Args:

    world: ranks.
    epoch: asked for the network's.
    lease: the next block for this host, of an epoch up to the one given; if need be (`must`) one that others have open.
    finish, release: called once for each lease.
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
        """by number of the pass"""
        self._begun: set[int] = set()
        """passes in which some reader has been given something"""
        self._ended: set[int] = set()
        """passes that some reader has come to the end of"""
        self._answers: dict[tuple[int, int, int], _Answer] = {}
        """by pass, slot and key"""
        self._parts: dict[Lease, _Part] = {}

    def begin(self, place: Place, number: int = 0) -> tuple[int, int]:
        """This reader's next pass, or pass `number` again: its number and its epoch."""
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
        """The block for this key; None: the pass is over.

        Raises:
            RemoteProtocolError: it is long over, or has never begun.
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
        """This reader is no more. used: what it was given in a pass that is over has been used."""
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
        # A pass that has come to nothing yet gets something, or the training process would run through empty ones.
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
        """What it was given before is used, if the pass is over, or will not be."""
        for lease in reader.open:
            self._settle(lease, place[0], used=reader.over)
        reader.open.clear()

    def _settle(self, lease: Lease, rank: int, *, used: bool) -> None:
        part = self._parts.get(lease)
        if part is None:
            return  # it was asked for again
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
