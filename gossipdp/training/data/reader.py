"""Leases as one process reads them: from the daemon, or, without one, the plain division of an epoch.

A `Reader` goes through the blocks of one pass, reports used blocks to the daemon, and divides each block among the
ranks. Of all samples of a pass, in order, rank r of L takes every L-th, so all ranks take the same number. Nothing here
knows what a sample is, or torch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, TypeVar

from gossipdp.protocol.data.blocks import Lease
from gossipdp.runtime import link as links
from gossipdp.training.data.plan import Plan
from gossipdp.training.messages import log

__all__ = ["Reader"]

RECONNECT_WITHIN: Final = 10.0
"""seconds for a dead daemon to come back before this process reads on alone, or logs that it waits"""
PAUSE: Final = 0.1
"""seconds between attempts to reach it"""
T = TypeVar("T")


class Reader:
    """One process's way through its passes.

    Args:
        plan: how an epoch is cut.
        group: world and rank of the replica group, and the slot of this reader among its rank's readers.
        slots: readers of this rank.
        home: the peer's home; None while gossip is off.
        ahead: samples that the loader holds ready, at most: a sample counts as used once as many later ones were handed
            out.
    """

    def __init__(self, plan: Plan, group: links.Group, slots: int, home: Path | None, ahead: int) -> None:
        self.plan, self.group, self.slots, self.home, self.ahead = plan, group, slots, home, ahead
        self.epoch = 0
        """epoch of the pass"""
        self.alone = True
        """no daemon takes part in the pass"""
        self._whole = False
        """every rank gets all samples, because its loader divides them"""
        self._waits = False
        """the pass is the daemon's and other ranks read it too, so this rank must not go on alone"""
        self._kept: list[links.DataLink] = []
        """the connection, if there is one"""
        self._number = 0
        """number of the pass, counted by the daemon"""
        self._key = 0
        """blocks asked for in the pass"""
        self._offset = 0
        """samples of the pass so far, of all ranks"""
        self._last: Any = None
        """the last sample of any rank"""
        self.handed = 0
        """samples of the pass so far, of this reader"""
        self._open: deque[tuple[Lease, int]] = deque()
        """leases that are not reported as used, and `handed` at the end of each"""
        _say_bye_at_the_end(self, self._kept)

    @property
    def _link(self) -> links.DataLink | None:
        return self._kept[0] if self._kept else None

    @_link.setter
    def _link(self, link: links.DataLink | None) -> None:
        self._kept[:] = [] if link is None else [link]

    # -- a pass -----------------------------------------------------------------------------------------------

    def begin(self, epoch: int, *, whole: bool = False) -> None:
        """Begin the next pass.

        Args:
            epoch: of the pass, without a daemon.
            whole: hand all samples to every rank, whose loader divides them.
        """
        self._whole = whole
        self._key = self._offset = self.handed = 0
        self._open.clear()
        self.epoch, self.alone = epoch, True
        number = self._number and self._number + 1
        while self.home is not None:
            there = links.data_path(self.home).exists()
            self._waits = self.group.world > 1 and number > 0
            again = self._link is None
            try:
                if self._link is None:
                    self._link = self._connect(self.home, patient=there)
                if self._link is not None:
                    began = self._link.begin(self.group, number)
                    self.epoch, self.alone, self._number = began.epoch, False, began.number
                    self._waits = self.group.world > 1
                return
            except links.DataLost as error:
                if not self._lose(error, for_good=again):
                    return

    def leases(self) -> Iterator[Lease]:
        """The blocks of the pass."""
        while (lease := self.next()) is not None:
            yield lease

    def next(self, first: int = -1) -> Lease | None:
        """The next block of the pass. None when the pass is over.

        Args:
            first: lease the next free block from this one on; -1: any.
        """
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
        return Lease(self.epoch, block if first < 0 else self.plan.block_at(block, self.epoch))

    def share(self, samples: Iterable[T]) -> Iterator[T]:
        """This rank's part of the next samples. A sample counts as handed out when the next one is asked for."""
        world, rank = self.group.world, self.group.rank
        for sample in samples:
            mine = self._whole or self._offset % world == rank
            self._offset += 1
            self._last = sample
            if mine:
                yield sample
                self._hand_out()

    def fill(self) -> Iterator[Any]:
        """At the end of a pass: repeat the last sample if this rank has one fewer than others."""
        over = 0 if self._whole else self._offset % self.group.world
        if over and self.group.rank >= over:
            yield self._last

    def handed_out(self, lease: Lease) -> None:
        """All samples of a block were handed out."""
        self._open.append((lease, self.handed))
        self._settle()

    @property
    def used(self) -> int:
        """Samples of the pass that are known to be used."""
        return max(0, self.handed - self._held)

    def bye(self) -> None:
        """This process ends, and has used what it was given."""
        _bye(self._kept)

    @property
    def _held(self) -> int:
        return self.ahead * self.group.world if self._whole else self.ahead

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
                    self._link = None  # the next request connects again

    # -- the daemon -------------------------------------------------------------------------------------------

    def _connect(self, home: Path, *, patient: bool) -> links.DataLink | None:
        until, lines = time.monotonic() + (RECONNECT_WITHIN if patient else 0.0), links.WaitLines()
        while True:
            try:
                return links.DataLink(home)
            except links.DataLost as error:
                if time.monotonic() >= until:
                    self._warn(f"no daemon at {error}")
                    if not self._waits:
                        return None
                    until = time.monotonic() + RECONNECT_WITHIN
                if line := lines.look("the daemon, to read more data", time.monotonic()):
                    log.warning("the reader of data is %s", line)
                time.sleep(PAUSE)

    def _come_back(self) -> None:
        """The daemon died during a pass: go on with the one that was started in its place."""
        assert self.home is not None
        self._link = self._connect(self.home, patient=True)
        if self._link is None:
            self.alone = True
        else:
            self._link.begin(self.group, self._number)

    def _lose(self, error: links.DataLost, *, for_good: bool) -> bool:
        """Returns True to look for the daemon again: the first time, and always while other ranks may find it.

        A rank that went on without the others would read another number of samples.
        """
        self._link = None
        if for_good:
            self._warn(str(error))
            if not self._waits:
                self.alone = True
                return False
            time.sleep(PAUSE)
        return True

    def _warn(self, reason: str) -> None:
        if self._waits:
            log.warning(
                "the reader of data waits for the daemon, because other ranks may have found it: %s; GOSSIPDP_OFF=1 "
                "reads without a daemon",
                reason,
            )
        else:
            log.warning("data is read as if this host were alone: %s", reason)


def _bye(kept: list[links.DataLink]) -> None:
    """Report that this process ends in order. The open blocks of a process that dies are read by others."""
    while kept:
        link = kept.pop()
        if getattr(sys, "last_value", None) is None:
            link.bye()


def _say_bye_at_the_end(reader: Reader, kept: list[links.DataLink]) -> None:
    weakref.finalize(reader, _bye, kept)
    if multiprocessing.parent_process() is not None:
        # A loader process also ends in order when its parent was killed, and then nothing was used.
        parent = os.getppid()
        Finalize(None, lambda: _bye(kept) if os.getppid() == parent else None, exitpriority=10)
