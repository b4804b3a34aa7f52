"""The training process's connection to its daemon, and the messages that wait to be sent on it.

A message leaves after the copies that it describes are done. Nothing here touches a tensor or waits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime import link as links
from gossipdp.training.tensors.carried import StateCopy
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.streams import Fence

__all__ = ["DaemonConnection"]

RETRY: Final = 1.0
"""seconds between attempts to reach a lost daemon"""
RETRY_REFUSED: Final = 30.0
"""seconds until the next attempt after the daemon refused this process"""


class _Pending(NamedTuple):
    """A message, the fence that must pass before it leaves, and the state that goes with it."""

    fence: Fence
    message: links.FromTraining
    state: StateCopy | None


class DaemonConnection:
    """At most one link to the daemon of `home`, and the queue of messages for it.

    Args:
        home: the peer's home.
        layout: its schema is announced; its copies end before the shared memory is released.
        world: training processes of this replica group.
    """

    def __init__(self, home: Path, layout: Layout, world: int) -> None:
        self._home, self._layout, self._world = home, layout, world
        self._link: links.Link | None = None
        self._retry_at = 0.0
        self._queue: deque[_Pending] = deque()

    @property
    def link(self) -> links.Link | None:
        """The link to the daemon; None while there is none."""
        return self._link

    @property
    def idle(self) -> bool:
        """True while no message waits to be sent."""
        return not self._queue

    def due(self, now: float) -> bool:
        """True if there is no link and the next attempt to connect is due."""
        return self._link is None and now >= self._retry_at

    def connect(self, now: float) -> None:
        """Connect and announce the model.

        Raises:
            UnreachableError: GD-105, there is no daemon.
        """
        self.retry_later(now)
        self._link = links.Link.connect(self._home)
        self._link.hello(self._layout.announced, self._world)

    def retry_later(self, now: float, *, refused: bool = False) -> None:
        """Make no attempt to connect for some seconds; for longer if the daemon `refused` this process."""
        self._retry_at = now + (RETRY_REFUSED if refused else RETRY)

    def retry_at_once(self) -> None:
        """Connect at the next `poll`."""
        self._retry_at = 0.0

    def send(self, fence: Fence, message: links.FromTraining, state: StateCopy | None = None) -> None:
        """Queue `message`. It leaves after `fence` is passed and `state` is complete."""
        self._queue.append(_Pending(fence, message, state))

    def flush(self) -> str:
        """Send the queued messages that are ready. Returns why the link must be dropped, or ""."""
        while self._queue and self._link is not None:
            fence, message, state = self._queue[0]
            if not fence() or (state is not None and not state.ready()):
                return ""
            try:
                if not self._post(self._link, message, state):
                    return ""
            except OSError as error:
                # The message would be relative to a reference that the daemon does not get.
                return f"no memory for the state of the model: {error.strerror}"
            self._queue.popleft()
        return ""

    def _post(self, link: links.Link, message: links.FromTraining, state: StateCopy | None) -> bool:
        """Send `message` with its files. Returns False if the daemon's queue is full."""
        contents: list[Iterable[Buffer]] = []
        if isinstance(message, links.Ready) and (state is not None or self._layout.reference.data):
            contents = [[self._layout.reference.data], state or []]
            message = msgspec.structs.replace(message, carries=True)
        elif isinstance(message, links.Submit) and state is not None and state.new:
            contents, message = [state], msgspec.structs.replace(message, tells=True)
        files: list[int] = []
        try:
            for each in contents:
                files.append(links.write_sealed(each))
            return link.send(message, files)
        finally:
            for file in files:
                os.close(file)

    def drop(self) -> None:
        """Close the link and forget the queue."""
        if self._link is not None:
            self._layout.finish()  # a device may still copy to and from the shared memory
            self._link.close()
        self._link = None
        self._queue.clear()
