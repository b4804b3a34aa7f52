"""One data set as one peer sees it: finished blocks, open leases, readers and owners, and which block to take next.

Nothing here sends a message. Times are numbers to keep and compare.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from gossipdp.protocol.data.blocks import DataSet, Lease
from gossipdp.protocol.data.claims import FinishedClaims
from gossipdp.protocol.data.rendezvous import Owners
from gossipdp.protocol.wire.messages import Reader

__all__ = ["BlockTable"]

WHOLE_EVERY: Final = 8
"""messages of which one carries all finished blocks"""
MOST_GAINED: Final = 64
"""times of gaining blocks that are told apart"""


class BlockTable:
    """What one peer knows of one data set, and what it takes from it."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.everything = (1 << data.blocks) - 1
        self.epoch = 0
        """the first epoch that is not finished"""
        self.finished = [0, 0]
        """blocks finished in `epoch` and in the next"""
        self._claims = FinishedClaims()
        self.readers: OrderedDict[bytes, Reader] = OrderedDict()
        """first bytes of an id -> report, the latest change in front"""
        self.owners = Owners(data.blocks)
        self.mine: dict[Lease, float] = {}
        """lease of this peer -> when it began"""
        self.reads = False
        """this peer trains on it"""
        self.reading = 0
        """members known to train on it"""
        self.duplicates = 0
        """blocks finished here that were known to be finished before"""
        self.usual = 0.0
        """seconds that a block usually takes; 0 while unknown"""
        self.known = False
        """this peer has heard what other members know"""
        self.known_at = math.inf
        self.presumed: set[bytes] = set()
        """owners that have not reported yet"""
        self._gained: deque[tuple[float, int]] = deque()
        """when this peer became the owner of which blocks; old entries are dropped"""
        self.answered: dict[bytes, float] = {}
        """member that asked lately -> when it was answered"""
        self.asked: set[bytes] = set()
        """members whose answer is awaited"""
        self.asked_at = -math.inf
        self.repeated = False
        """the question was repeated"""
        self.news = 0
        """messages still to send soon"""
        self.sent_at = -math.inf
        self._sent = 0
        """messages sent"""
        self._fresh = [[0, 0], [0, 0]]
        """blocks that lately became known as finished, and those of shortly before; each of `epoch` and of the next"""
        self._told: tuple[int, ...] = ()

    # -- finished blocks --------------------------------------------------------------------------------------

    def merge(self, epoch: int, finished: Sequence[int]) -> bool:
        """Take the union with the blocks finished in `epoch` and the next. Returns whether that is news."""
        before = self.epoch, *self.finished
        while self.epoch < epoch and any(self.finished):
            self._next_epoch()
        self.epoch = max(self.epoch, epoch)
        for number, blocks in enumerate(finished):
            place = epoch + number - self.epoch
            if 0 <= place <= 1:
                self._fresh[0][place] |= blocks & ~self.finished[place]
                self.finished[place] |= blocks
        while self.finished[0] == self.everything:
            self._next_epoch()
        return before != (self.epoch, *self.finished)

    def merge_told(
        self, epoch: int, finished: Sequence[int], source: bytes, now: float, *, voice: bool, asked: bool
    ) -> bool:
        """As `merge`, of what `source` tells, as far as it is believed (`claims`).

        Args:
            voice: the word of `source` counts.
            asked: this peer has just come, and has asked `source`.
        """
        if asked or not self.reads:
            return self.merge(epoch, finished)  # it follows the others
        said = [self.everything if place + self.epoch < epoch else 0 for place in range(2)]
        for number, blocks in enumerate(finished):
            if 0 <= (place := epoch + number - self.epoch) <= 1:
                said[place] |= blocks
        new = [blocks & ~known for blocks, known in zip(said, self.finished, strict=True)]
        size = self.data.blocks
        believed = self._claims.believed(source, new[0] | new[1] << size, self.usual, now, voice=voice)
        return self.merge(self.epoch, [believed & self.everything, believed >> size])

    def _next_epoch(self) -> None:
        self.epoch += 1
        self._claims.next_epoch(self.data.blocks)
        for sets in (self.finished, *self._fresh):
            sets[:] = sets[1], 0

    def lately(self) -> list[int]:
        """Finished blocks that other members may not have heard of; now and then all of them."""
        self._sent += 1
        if self._sent % WHOLE_EVERY == 0:
            self._fresh = [[0, 0], self._fresh[0]]
            return self.finished
        return [one | other for one, other in zip(*self._fresh, strict=True)]

    def is_finished(self, lease: Lease) -> bool:
        """Whether the block of `lease` is known to be finished."""
        place = lease.epoch - self.epoch
        return place < 0 or (place <= 1 and bool(self.finished[place] >> lease.block & 1))

    def changes(self) -> tuple[int, int, int, int, int] | None:
        """(epoch, finished blocks, readers, open leases, duplicates); None if nothing changed since the last call."""
        told = (self.epoch, self.finished[0].bit_count(), self.reading, len(self.mine), self.duplicates)
        if told == self._told:
            return None
        self._told = told
        return told

    # -- leases of this peer ----------------------------------------------------------------------------------

    def open(self) -> None:
        """This peer begins to train on it."""
        self.reads = True

    def close(self) -> None:
        """This peer stops training on it, and its leases end."""
        self.reads = self.known = False
        self.known_at = math.inf
        self.mine.clear()

    def take(self, lease: Lease, now: float) -> None:
        """This peer begins to train on a block."""
        self.mine[lease] = now

    def finish(self, lease: Lease, now: float) -> None:
        """This peer has used every sample of the block."""
        since = self.mine.pop(lease, None)
        if since is not None:
            self.usual = now - since if not self.usual else 0.8 * self.usual + 0.2 * (now - since)
        if self.is_finished(lease):
            self.duplicates += 1
        elif lease.epoch <= self.epoch + 1 and lease.block < self.data.blocks:
            blocks = [0, 0]
            blocks[lease.epoch - self.epoch] = 1 << lease.block
            self.merge(self.epoch, blocks)

    def release(self, lease: Lease) -> bool:
        """This peer gives the block up. Returns whether it had it open."""
        return self.mine.pop(lease, None) is not None

    def outlasted(self, seconds: float, now: float) -> list[Lease]:
        """The leases older than `seconds`. Their age counts as the usual time of a block, if it is longer."""
        over = [(lease, since) for lease, since in self.mine.items() if now > since + seconds]
        for _, since in over:
            self.usual = max(self.usual, now - since)
        return [lease for lease, _ in over]

    # -- members ----------------------------------------------------------------------------------------------

    def report(self, reader: Reader) -> None:
        """Keep the latest report of a reader."""
        self.readers[reader.peer] = reader
        self.readers.move_to_end(reader.peer, last=False)

    def ask(self, members: Iterable[bytes], now: float) -> None:
        """Members are asked what they know."""
        self.asked = set(members)
        self.asked_at, self.repeated = now, False

    def repeat(self) -> None:
        """The question is repeated."""
        self.repeated = True

    def end_asking(self, now: float) -> bool:
        """All asked members have answered, or there was enough time. Returns whether leases begin with that."""
        self.asked.clear()
        if not self.reads or self.known:
            return False
        # Other members' knowledge is here. From now on this peer is one of the readers.
        self.known, self.known_at = True, now
        if len(self.owners) > 1:
            self._gain(self.everything, now)
        return True

    def may_answer(self, member: bytes, pause: float, now: float) -> bool:
        """Whether `member` may be answered, at most once in `pause` seconds. Counts as an answer."""
        self.answered = {peer: at for peer, at in self.answered.items() if now < at + pause}
        if member in self.answered:
            return False
        self.answered[member] = now
        return True

    def spread(self, messages: int) -> None:
        """There is news: `messages` are to be sent soon."""
        self.news = messages

    def counted(self) -> None:
        """One of the messages with news is sent."""
        self.news = max(0, self.news - 1)

    def sent(self, now: float) -> None:
        """A message was sent."""
        self.sent_at = now

    def presume_silent_idle(self) -> None:
        """From now on, members that have reported nothing count as reading nothing."""
        self.known_at = -math.inf

    # -- owners -----------------------------------------------------------------------------------------------

    def follow(self, me: bytes, readers: set[bytes], presumed: set[bytes], now: float) -> bool:
        """`readers` and `presumed` own the blocks from now on, if this peer reads. Returns whether that is new."""
        self.reading, self.presumed = len(readers), presumed
        before = self.owners.of(me)
        changed = self.owners.become(readers | presumed if self.reads else ())
        if self.known:
            self._gain(self.owners.of(me) & ~before, now)
        return changed

    def _gain(self, blocks: int, now: float) -> None:
        if blocks:
            self._gained.append((now, blocks))
        if len(self._gained) > MOST_GAINED:
            (_, first), (later, second) = self._gained.popleft(), self._gained.popleft()
            self._gained.appendleft((later, first | second))

    def unsettled(self, since: float) -> int:
        """Blocks that this peer became the owner of after `since`.

        The former owner may not know that it lost them, or may have used them without this peer's knowledge. For a
        newcomer these are all blocks.
        """
        while self._gained and self._gained[0][0] <= since:
            self._gained.popleft()
        found = 0
        for _, blocks in self._gained:
            found |= blocks
        return found

    # -- choosing ---------------------------------------------------------------------------------------------

    def choose(self, me: bytes, epoch: int, first: int, kept: int, unsettled: int = 0) -> int | None:
        """A free block of `epoch` for this peer, or None.

        Args:
            me: first bytes of this peer's id.
            first: take the next block from this number on; -1: the heaviest one.
            kept: blocks that are left to each other owner.
            unsettled: blocks to leave alone.
        """
        free = self._free(me, epoch) & ~unsettled
        own = free & self.owners.of(me)
        return self._best(me, own, first) if own else self._help(me, free, first, kept)

    def inherit(self, me: bytes, epoch: int, first: int) -> int | None:
        """An own block, settled or not: the one that its former owner would have reached last."""
        own = self._free(me, epoch) & self.owners.of(me)
        others = [peer for peer in self.owners if peer != me]
        if first >= 0 or not others or not own:
            return self._best(me, own, first)
        return _number(self.owners.lightest(others, own))

    def take_over(self, me: bytes, epoch: int) -> int | None:
        """A block that another member has open, for when there is nothing else to do."""
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
        """Blocks of `epoch` that this peer has open."""
        return sum(1 << lease.block for lease in self.mine if lease.epoch == epoch)

    def _help(self, me: bytes, free: int, first: int, kept: int) -> int | None:
        """A block of another owner, for a peer without free blocks of its own.

        Each owner keeps the blocks that it reaches next. The rest is shared among the members with hardly any blocks
        left. They count as idle early, because they may have none when their news arrives; so the shares do not change
        each time one of them inherits a block. Each idle member takes its share in an order of its own: news is late,
        and in a common order all would follow close behind one another.
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
    """The lowest number in a set."""
    return (blocks & -blocks).bit_length() - 1
