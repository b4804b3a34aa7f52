"""A rank that does not speak for its group, at the daemon: it has the shared memory, and says when it is done with it.

Nothing here may touch a tensor, or wait, but for `join`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path
from typing import Final

from gossipdp.errors import UnreachableError
from gossipdp.runtime import link as links
from gossipdp.training.tensors.layout import Fence, Layout

__all__ = ["Follower"]

log = logging.getLogger("gossipdp.training")

JOIN_WITHIN: Final = 5.0
"""seconds for the daemon to share its memory with another rank; it has it already"""
AGAIN: Final = 0.02
"""seconds until a daemon that has no place in its queue is tried again: no descriptor tells when it has"""


class Follower:
    """Args:

    rank: 1 and up.
    ranks: of the group.
    """

    def __init__(self, home: Path, layout: Layout, rank: int, ranks: int) -> None:
        self._home, self._layout, self.rank, self._ranks = home, layout, rank, ranks
        self._link: links.Link | None = None
        self._outbox: deque[tuple[Fence, links.FromTraining]] = deque()

    @property
    def region(self) -> links.Region | None:
        return None if self._link is None else self._link.region

    def join(self, leader: int) -> bool:
        """Connect as a rank of the group of process `leader`, and wait for the shared memory; False if it fails."""
        self.close()
        until = time.monotonic() + JOIN_WITHIN
        link = self._connect(until)
        if link is None:
            return False
        link.hello_as_rank(self.rank, leader)
        while link.region is None and not link.lost and (left := until - time.monotonic()) > 0:
            link.wait(left)
            for message in link.receive():
                if isinstance(message, links.Refused):
                    log.warning("rank %d: %s %s: %s", self.rank, message.code, message.cause, message.seen)
        if link.region is None or link.region.size != self._layout.schema.size:
            log.warning("rank %d: no shared memory from the daemon: %s", self.rank, link.lost or "it does not answer")
            link.close()
            return False
        self._layout.pin(link.region, self.rank, self._ranks)
        self._link = link
        return True

    def _connect(self, until: float) -> links.Link | None:
        """All ranks of a group come in one instant: whoever is turned away for that tries again."""
        while True:
            try:
                return links.Link.connect(self._home)
            except UnreachableError as error:
                crowded = isinstance(error.__cause__, BlockingIOError | ConnectionRefusedError)
                if not crowded or time.monotonic() >= until:
                    log.warning("rank %d: %s", self.rank, error)
                    return None
            time.sleep(AGAIN)

    def say(self, fence: Fence, message: links.FromTraining) -> None:
        """Say `message` once `fence` is passed."""
        self._outbox.append((fence, message))
        self.poll()

    def poll(self) -> None:
        if self._link is None:
            return
        self._link.receive()  # to notice that the daemon is gone; it has nothing else to say
        while self._outbox and not self._link.lost:
            fence, message = self._outbox[0]
            if not fence() or not self._link.send(message):
                return
            self._outbox.popleft()

    def farewell(self) -> None:
        """Say that this rank goes of its own will."""
        if self._link is not None:
            self._link.send(links.Farewell())

    def close(self) -> None:
        if self._link is not None:
            self.farewell()
            # A device may still copy to and from the memory that goes.
            self._layout.finish()
            self._link.close()
        self._link = None
        self._outbox.clear()
