"""The one thread that owns every vector of a peer: jobs in, results out, in order.

The I/O thread submits and collects; an eventfd in its poll set tells it that results wait. At most `limit` jobs are
inside at once and the rest wait outside, so that the queue's fullness can be seen. No protocol may stand here.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Compute", "Finished"]

LIMIT = 64


class Finished(NamedTuple):
    """One unit of work that is over: what was asked, and its result or the exception that ended it."""

    work: Any
    result: Any
    error: BaseException | None


class Compute:
    """Args: run: executes one unit of work; called on the compute thread only."""

    def __init__(self, run: Callable[[Any], Any], *, limit: int = LIMIT, name: str = "compute") -> None:
        self._run, self._limit = run, limit
        self._inside = 0
        self._backlog: deque[Any] = deque()
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `collect` has something to give."""
        return self._wake

    @property
    def waiting(self) -> int:
        """Units of work not finished yet."""
        return self._inside + len(self._backlog)

    def submit(self, work: Any) -> None:
        self._backlog.append(work)
        self._feed()

    def collect(self) -> list[Finished]:
        """What has finished since the last call, in the order it was submitted."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return []
        finished = []
        while self._finished:
            finished.append(self._finished.popleft())
        self._inside -= len(finished)
        self._feed()
        return finished

    def close(self, timeout: float = 5.0) -> None:
        """Finish what is inside, then stop."""
        self._backlog.clear()
        self._asked.put(None)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._wake)

    def _feed(self) -> None:
        while self._backlog and self._inside < self._limit:
            self._inside += 1
            self._asked.put((self._backlog.popleft(),))

    def _work(self) -> None:
        while (item := self._asked.get()) is not None:
            result, error = None, None
            try:
                result = self._run(item[0])
            except BaseException as caught:
                error = caught
            self._finished.append(Finished(item[0], result, error))
            os.eventfd_write(self._wake, 1)
