"""The blocks of one data set as one peer sees them: which are finished, who has which open, and which to take next.

Sets of blocks are whole numbers, bit b for block b. What is taken, told and asked when is for `sharding` to say: no
message is sent from here, and nothing here knows the time but as a number to keep.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from gossipdp.protocol.data.rendezvous import Owners, elements
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BLOCKS, Reader

__all__ = ["DataSet", "Lease", "Ledger", "pack", "unpack"]

_RAW, _IN, _OUT = range(3)
WHOLE_EVERY: Final = 8
"""messages of which one carries all that is finished"""
MOST_GAINED: Final = 64
"""times at which blocks fell to this peer that are told apart"""


class DataSet(NamedTuple):
    """What peers that read the same must agree on. `digest`, of 16 bytes, stands for all of it."""

    digest: bytes
    name: str
    blocks: int


class Lease(NamedTuple):
    epoch: int
    block: int

    @property
    def code(self) -> int:
        """As it is told to others, who know the epoch but for the last bits."""
        return (self.epoch & 0xFFFF) << 16 | self.block


def pack(blocks: int, count: int) -> bytes:
    """A set of numbers below `count`: all bits, or a list of what is in it or is not, whichever is shortest."""
    inside = blocks.bit_count()
    if min(inside, count - inside) * 2 < (count + 7) // 8:
        kind, listed = (_IN, blocks) if 2 * inside <= count else (_OUT, (1 << count) - 1 ^ blocks)
        numbers = list(elements(listed))
        return bytes([kind]) + struct.pack(f"<{len(numbers)}H", *numbers)
    return bytes([_RAW]) + blocks.to_bytes((count + 7) // 8, "little")


def unpack(data: Buffer, count: int) -> int | None:
    """None for what `pack` does not write."""
    data = bytes(memoryview(data)[: 2 * MAX_BLOCKS + 2])
    if not data or len(data) > 1 + (count + 7) // 8:
        return None
    kind, body = data[0], data[1:]
    if kind == _RAW:
        found = int.from_bytes(body, "little")
        return found if found >> count == 0 else None
    if kind not in (_IN, _OUT) or len(body) % 2:
        return None
    listed = 0
    for number in struct.unpack(f"<{len(body) // 2}H", body):
        if number >= count:
            return None
        listed |= 1 << number
    return listed if kind == _IN else (1 << count) - 1 ^ listed


class Ledger:
    """What one peer knows of one data set, and what it takes from it."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.everything = (1 << data.blocks) - 1
        self.epoch = 0
        self.finished = [0, 0]
        """in `epoch` and in the next"""
        self.readers: OrderedDict[bytes, Reader] = OrderedDict()
        """by the first bytes of their ids, what changed last in front"""
        self.owners = Owners(data.blocks)
        self.mine: dict[Lease, float] = {}
        """leases of this peer, and when each began"""
        self.reads = False
        self.reading = 0
        """members that are known to read"""
        self.duplicates = 0
        self.usual = 0.0
        """seconds a block takes"""
        self.known = False
        """what others know has been heard"""
        self.known_at = math.inf
        self.presumed: set[bytes] = set()
        """of the owners, those that have not been heard of yet"""
        self.gained: deque[tuple[float, int]] = deque()
        """what fell to this peer from others, and when; what is long ago is gone"""
        self.answered: dict[bytes, float] = {}
        """who has asked lately, and when it was answered"""
        self.asked: set[bytes] = set()
        self.asked_at = -math.inf
        self.repeated = False
        self.news = 0
        """messages still to be sent soon"""
        self.sent_at = -math.inf
        self.sent = 0
        """messages"""
        self.fresh = [[0, 0], [0, 0]]
        """what was learnt to be finished lately, and shortly before that; each of `epoch` and of the next"""
        self.told: tuple[int, ...] = ()

    def merge(self, epoch: int, finished: Sequence[int]) -> bool:
        """Take the union; False if nothing is new."""
        before = self.epoch, *self.finished
        while self.epoch < epoch and any(self.finished):
            self._next_epoch()
        self.epoch = max(self.epoch, epoch)
        for number, blocks in enumerate(finished):
            place = epoch + number - self.epoch
            if 0 <= place <= 1:
                self.fresh[0][place] |= blocks & ~self.finished[place]
                self.finished[place] |= blocks
        while self.finished[0] == self.everything:
            self._next_epoch()
        return before != (self.epoch, *self.finished)

    def _next_epoch(self) -> None:
        self.epoch += 1
        for sets in (self.finished, *self.fresh):
            sets[:] = sets[1], 0

    def lately(self) -> list[int]:
        """What is finished, or of that what others may not have heard yet; the whole now and then."""
        self.sent += 1
        if self.sent % WHOLE_EVERY == 0:
            self.fresh = [[0, 0], self.fresh[0]]
            return self.finished
        return [one | other for one, other in zip(*self.fresh, strict=True)]

    def is_finished(self, lease: Lease) -> bool:
        place = lease.epoch - self.epoch
        return place < 0 or (place <= 1 and bool(self.finished[place] >> lease.block & 1))

    # -- owners -----------------------------------------------------------------------------------------------

    def follow(self, me: bytes, readers: set[bytes], presumed: set[bytes], now: float) -> bool:
        """These own the blocks now, which is nothing to a peer that does not read; False if they did before."""
        self.reading, self.presumed = len(readers), presumed
        before = self.owners.of(me)
        changed = self.owners.become(readers | presumed if self.reads else ())
        if self.known:
            self._gain(self.owners.of(me) & ~before, now)
        return changed

    def come(self, now: float) -> None:
        """What others know has been heard: from now on this peer is one of them."""
        self.known, self.known_at = True, now
        if len(self.owners) > 1:
            self._gain(self.everything, now)

    def _gain(self, blocks: int, now: float) -> None:
        if blocks:
            self.gained.append((now, blocks))
        if len(self.gained) > MOST_GAINED:
            (_, first), (later, second) = self.gained.popleft(), self.gained.popleft()
            self.gained.appendleft((later, first | second))

    def unsettled(self, since: float) -> int:
        """What has fallen to this peer after `since`: its former owner may not know that it has lost it, or have used
        it without this peer's knowing. To a newcomer that is all there is."""
        while self.gained and self.gained[0][0] <= since:
            self.gained.popleft()
        found = 0
        for _, blocks in self.gained:
            found |= blocks
        return found

    # -- choosing ---------------------------------------------------------------------------------------------

    def choose(self, me: bytes, epoch: int, first: int, kept: int, unsettled: int = 0) -> int | None:
        """A free block of `epoch` that falls to `me`, if there is one; `kept` are left to each of its owners."""
        free = self._free(me, epoch) & ~unsettled
        own = free & self.owners.of(me)
        return self._best(me, own, first) if own else self._help(me, free, first, kept)

    def inherit(self, me: bytes, epoch: int, first: int) -> int | None:
        """An own block, settled or not: the one that its former owner would have come to last."""
        own = self._free(me, epoch) & self.owners.of(me)
        others = [peer for peer in self.owners if peer != me]
        if first >= 0 or not others or not own:
            return self._best(me, own, first)
        return _number(self.owners.lightest(others, own))

    def take_over(self, me: bytes, epoch: int) -> int | None:
        """A block that others have open, when there is nothing else to do at all."""
        open_ = self.everything & ~self.finished[epoch - self.epoch] & ~self._held(epoch)
        return self._best(me, open_, -1)

    def _free(self, me: bytes, epoch: int) -> int:
        taken = self.finished[epoch - self.epoch] | self._held(epoch)
        for peer in self.owners:
            if peer != me:
                reader = self.readers.get(peer)
                for code in () if reader is None else reader.leases:
                    if code >> 16 == epoch & 0xFFFF:
                        taken |= 1 << (code & 0xFFFF)
        return self.everything & ~taken

    def _held(self, epoch: int) -> int:
        """By this peer."""
        return sum(1 << lease.block for lease in self.mine if lease.epoch == epoch)

    def _help(self, me: bytes, free: int, first: int, kept: int) -> int | None:
        """Of what is free to others, all that they do not come to next is shared among those with none of their own.

        Who has hardly any left counts as one of these already: it may have none by the time that its news is here, and
        what falls to it from then on should not have been begun by another. Nor do the shares change each time that one
        of these inherits a block. Each takes its share in an order of its own: news of what others have taken is late,
        and whoever went through the same blocks in the same order would follow close behind them.
        """
        if me not in self.owners:
            return None
        spare, idle = 0, []
        for peer in self.owners:
            theirs = free & self.owners.of(peer)
            count = theirs.bit_count()
            if count > kept:
                spare |= theirs & ~self.owners.heaviest(peer, theirs, kept + count // 3)
            else:
                idle.append(peer)
        return self._best(me, self.owners.shared(spare, idle)[me], first)

    def _best(self, me: bytes, blocks: int, first: int) -> int | None:
        if not blocks or me not in self.owners:
            return None
        if first < 0:
            return _number(self.owners.heaviest(me, blocks))
        after = blocks >> first
        return first + _number(after) if after else _number(blocks)


def _number(blocks: int) -> int:
    """The first of a set."""
    return (blocks & -blocks).bit_length() - 1
