"""A rank other than the leader, at the daemon: it maps the shared memory, and says when it is done with it.

Nothing here touches a tensor. Only `join` waits.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import UnreachableError
from gossipdp.runtime import link as links
from gossipdp.training.messages import log
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.streams import Fence

__all__ = ["Follower"]

JOIN_WITHIN: Final = 5.0
"""seconds for the daemon to share its memory with another rank; the leader has it already"""
AGAIN: Final = 0.02
"""seconds until the next attempt while the daemon's queue of connections is full; no descriptor tells when it is not"""


class Follower:
    """A follower's connection to the daemon.

    Args:
        home: the peer's home.
        layout: the model's exchanged tensors.
        rank: 1 and up.
        ranks: ranks of the group.
    """

    def __init__(self, home: Path, layout: Layout, rank: int, ranks: int) -> None:
        self._home, self._layout, self.rank, self._ranks = home, layout, rank, ranks
        self._link: links.Link | None = None
        self._queue: deque[tuple[Fence, links.FromTraining]] = deque()
        self._slot = 0
        """number of the last slot inside the live parameters"""
        self._trains = False
        """it has joined before, and trains meanwhile"""

    @property
    def region(self) -> links.Region | None:
        """The shared memory; None while there is no daemon."""
        return None if self._link is None else self._link.region

    @property
    def free(self) -> NDArray[np.float32] | None:
        """The buffer of snapshots; None while there is no daemon."""
        return None if self.region is None else self.region.buffers[self._slot % 2]

    @property
    def free_bytes(self) -> NDArray[np.uint8] | None:
        """The same buffer as bytes, for moments."""
        return None if self.region is None else self.region.raw[self._slot % 2]

    def join(self, leader: int) -> bool:
        """Connect, and wait for the shared memory. Returns False if that fails.

        Args:
            leader: process id of the leader.
        """
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
        self._layout.pin_more(everything=not self._trains)
        self._link, self._trains = link, True
        return True

    def _connect(self, until: float) -> links.Link | None:
        """All ranks of a group connect at once. A rank that finds the queue full tries again."""
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
        """Send `message` once `fence` is passed."""
        self._queue.append((fence, message))
        self.poll()

    def applied(self, fence: Fence, session: int, slot: int) -> None:
        """`slot` is in the live parameters once `fence` is passed. Slot 0 is the model of a session."""
        self._slot = slot
        self.say(fence, links.Applied(session, slot))

    def poll(self) -> None:
        """Send what is ready. Never waits."""
        if self._link is None:
            return
        self._layout.pin_more()
        self._link.receive()  # only to notice that the daemon is gone
        while self._queue and not self._link.lost:
            fence, message = self._queue[0]
            if not fence() or not self._link.send(message):
                return
            self._queue.popleft()

    def farewell(self) -> None:
        """Tell the daemon that this rank leaves on purpose."""
        if self._link is not None:
            self._link.send(links.Farewell())

    def close(self) -> None:
        """Leave the daemon."""
        if self._link is not None:
            self.farewell()
            # A device may still copy to and from the shared memory.
            self._layout.finish()
            self._link.close()
        self._link = None
        self._queue.clear()
