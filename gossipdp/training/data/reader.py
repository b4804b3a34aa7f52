"""Leases as one process reads them: from the daemon, or, where there is none, the plain division of an epoch.

A `Plan` says how an epoch is cut into blocks, and which samples a block holds. A `Reader` goes through the blocks of
one pass, tells the daemon what has been used, and cuts each block among the ranks: of all samples of a pass, in the
order in which they come, rank r of L takes every L-th, so that all ranks take the same number. Nothing here may know
what a sample is, or torch.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.protocol.wire.messages import MAX_BLOCKS
from gossipdp.runtime import link as links

__all__ = ["Plan", "Reader", "shuffled"]

log = logging.getLogger("gossipdp.training")

BLOCK: Final = 256
"""samples, unless an epoch would have more than `MAX_BLOCKS` blocks"""
RECONNECT_WITHIN: Final = 10.0
"""seconds in which a daemon that died may be started again before this process reads on alone, or says that it waits"""
PAUSE: Final = 0.1
"""seconds between attempts to reach it"""
_ROUNDS: Final = 4
T = TypeVar("T")


def shuffled(numbers: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where a permutation of 0 ... size - 1 takes `numbers`: the same on every host, and never held as a whole.

    A Feistel network of four rounds on the next power of four, followed until it comes back below `size` (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS, person=b"gossipdp shuffle").digest()
    keys = np.frombuffer(digest, "<u8")
    found = numbers.astype(np.uint64)
    walking = np.ones(len(found), bool)
    while walking.any():
        left, right = found[walking] >> np.uint64(half), found[walking] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        found[walking] = (left << np.uint64(half)) | right
        walking = found >= size
    return found.astype(np.int64)


class Plan(NamedTuple):
    """How an epoch is cut. All peers that read together have the same."""

    name: str
    kind: str
    """what the numbers of samples stand for"""
    size: int
    """samples"""
    block: int
    seed: int
    shuffle: bool

    @classmethod
    def of(cls, name: str, kind: str, size: int, block: int | None, seed: int, shuffle: bool) -> Plan:
        """Raises DataError GD-309."""
        if size < 1:
            raise DataError("GD-309", "the data set is empty", seen=f"{size} samples", do="check where it comes from")
        cut = block or max(BLOCK, -(-size // MAX_BLOCKS))
        if cut < 1 or -(-size // cut) > MAX_BLOCKS:
            least = -(-size // MAX_BLOCKS)
            raise DataError(
                "GD-309", "an epoch has too many blocks", seen=f"{size} samples in blocks of {cut}",
                do=f"make blocks of at least {least}",
            )  # fmt: skip
        if not 0 < len(name.encode()) <= 48:
            raise DataError("GD-309", "a data set's name has 1 to 48 bytes", seen=repr(name))
        return cls(name, kind, size, cut, seed, shuffle)

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)

    @property
    def digest(self) -> bytes:
        text = "/".join(map(str, self)).encode()
        return hashlib.blake2b(text, digest_size=16, person=b"gossipdp data").digest()

    def samples(self, lease: Lease) -> NDArray[np.int64]:
        """The numbers of the samples in a block."""
        first = lease.block * self.block
        places = np.arange(first, min(first + self.block, self.size), dtype=np.int64)
        return shuffled(places, self.size, self.seed, lease.epoch) if self.shuffle else places

    def turned(self, block: int, epoch: int) -> int:
        """The place of `block` in what is read in order: an owner's blocks are others in each epoch."""
        return (block + self._turn(epoch)) % self.blocks

    def before_turn(self, place: int, epoch: int) -> int:
        """The block that `turned` puts there."""
        return (place - self._turn(epoch)) % self.blocks

    def _turn(self, epoch: int) -> int:
        return int(shuffled(np.array([epoch % self.blocks]), self.blocks, self.seed, 0)[0]) if self.shuffle else 0


class Reader:
    """One process's way through its passes.

    Args:
        group: who reads; its world and rank tell the ranks of the group apart, its slot this rank's readers.
        slots: readers of this rank.
        home: the peer's; None: gossip is off.
        ahead: samples that are handed out before the one handed out first has been used.
    """

    def __init__(self, plan: Plan, group: links.Group, slots: int, home: Path | None, ahead: int) -> None:
        self.plan, self.group, self.slots, self.home, self.ahead = plan, group, slots, home, ahead
        self.epoch = 0
        """of the pass"""
        self.alone = True
        self.whole = False
        """all samples are handed to every rank, whose loader leaves it its part of them"""
        self._stays = False
        """one of several ranks whose passes are the daemon's: to read on alone is not this one's to decide"""
        self._kept: list[links.DataLink] = []
        """the connection, if there is one"""
        self._number = self._key = 0
        self._offset = 0
        """samples of the pass so far, of all ranks"""
        self._last: Any = None
        self.handed = 0
        """samples of the pass so far, of this reader"""
        self._open: deque[tuple[Lease, int]] = deque()
        """leases, and what `handed` was when all was handed out"""
        _say_bye_at_the_end(self, self._kept)

    @property
    def _link(self) -> links.DataLink | None:
        return self._kept[0] if self._kept else None

    @_link.setter
    def _link(self, link: links.DataLink | None) -> None:
        self._kept[:] = [] if link is None else [link]

    # -- a pass -----------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Begin the next pass; alone, over `epoch`."""
        self._key = self._offset = self.handed = 0
        self._open.clear()
        self.epoch, self.alone = epoch, True
        number = self._number and self._number + 1
        while self.home is not None:
            there = links.data_path(self.home).exists()
            self._stays = self.group.world > 1 and number > 0
            again = self._link is None
            try:
                if self._link is None:
                    self._link = self._connect(self.home, patient=there)
                if self._link is not None:
                    began = self._link.begin(self.group, number)
                    self.epoch, self.alone, self._number = began.epoch, False, began.number
                    self._stays = self.group.world > 1
                return
            except links.DataLost as error:
                if not self._lose(error, for_good=again):
                    return

    def leases(self) -> Iterator[Lease]:
        """The blocks of the pass."""
        while (lease := self.next()) is not None:
            yield lease

    def next(self, first: int = -1) -> Lease | None:
        """The next block of the pass; None: it is over. first: take what comes next in order, from this block on."""
        key = self._key
        self._key += 1
        while not self.alone:
            again = self._link is None
            try:
                if self._link is None:
                    self._come_back()
                if self._link is not None:
                    found = self._link.next(key, first)
                    return None if found is None else Lease(*found)
            except links.DataLost as error:
                self._lose(error, for_good=again)
        block = self.group.slot + key * self.slots
        if block >= self.plan.blocks:
            return None
        return Lease(self.epoch, block if first < 0 else self.plan.before_turn(block, self.epoch))

    def share(self, samples: Iterable[T]) -> Iterator[T]:
        """Of the next samples of the pass, those of this rank; told as handed out when the next one is asked for."""
        world, rank = self.group.world, self.group.rank
        for sample in samples:
            mine = self.whole or self._offset % world == rank
            self._offset += 1
            self._last = sample
            if mine:
                yield sample
                self._hand_out()

    def fill(self) -> Iterator[Any]:
        """What is missing for all ranks to take the same number: the last sample of all again, or nothing."""
        over = 0 if self.whole else self._offset % self.group.world
        if over and self.group.rank >= over:
            yield self._last

    def handed_out(self, lease: Lease) -> None:
        """The last sample of a block was taken."""
        self._open.append((lease, self.handed))
        self._settle()

    @property
    def used(self) -> int:
        """Samples of the pass that have been used, at least."""
        return max(0, self.handed - self._held)

    def bye(self) -> None:
        """This process ends, and has used what it was given."""
        _bye(self._kept)

    @property
    def _held(self) -> int:
        return self.ahead * self.group.world if self.whole else self.ahead

    def _hand_out(self) -> None:
        self.handed += 1
        self._settle()

    def _settle(self) -> None:
        while self._open and self._open[0][1] + self._held <= self.handed:
            lease, _ = self._open.popleft()
            if self._link is not None:
                try:
                    self._link.used(*lease)
                except links.DataLost:
                    self._link = None  # the next question finds the daemon again, or not

    # -- the daemon -------------------------------------------------------------------------------------------

    def _connect(self, home: Path, *, patient: bool) -> links.DataLink | None:
        until = time.monotonic() + (RECONNECT_WITHIN if patient else 0.0)
        while True:
            try:
                return links.DataLink(home)
            except links.DataLost as error:
                if time.monotonic() >= until:
                    self._warn(f"no daemon at {error}")
                    if not self._stays:
                        return None
                    until = time.monotonic() + RECONNECT_WITHIN
                time.sleep(PAUSE)

    def _come_back(self) -> None:
        """The daemon died in the middle of a pass: go on with the one that was started in its place."""
        assert self.home is not None
        self._link = self._connect(self.home, patient=True)
        if self._link is None:
            self.alone = True
        else:
            self._link.begin(self.group, self._number)

    def _lose(self, error: links.DataLost, *, for_good: bool) -> bool:
        """Is the daemon to be looked for again? It is, the first time, and always if the other ranks may have found it:
        one that went on without them would read another number of samples."""
        self._link = None
        if for_good:
            self._warn(str(error))
            if not self._stays:
                self.alone = True
                return False
            time.sleep(PAUSE)
        return True

    def _warn(self, reason: str) -> None:
        if self._stays:
            log.warning(
                "data waits for the daemon, which other ranks may have found: %s; GOSSIPDP_OFF=1 reads without one",
                reason,
            )
        else:
            log.warning("data is read as if this host were alone: %s", reason)


def _bye(kept: list[links.DataLink]) -> None:
    """A process that ends as it should says so; of one that dies, what it had open is given to others."""
    while kept:
        link = kept.pop()
        if getattr(sys, "last_value", None) is None:
            link.bye()


def _say_bye_at_the_end(reader: Reader, kept: list[links.DataLink]) -> None:
    weakref.finalize(reader, _bye, kept)
    if multiprocessing.parent_process() is not None:
        # A data loader's process: it also ends in order when its parent was killed, and then nothing was used.
        parent = os.getppid()
        Finalize(None, lambda: _bye(kept) if os.getppid() == parent else None, exitpriority=10)
