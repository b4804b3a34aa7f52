"""One thread that carries out work in order: jobs in, results out.

The I/O thread submits and collects. An eventfd in its poll set tells it that results wait. At most `limit` units of
work are inside at once and the others wait outside, so that the length of the queue is visible. No protocol may stand
here.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Call", "Compute", "Finished"]

LIMIT = 64
T = TypeVar("T")


class Call(Protocol):
    """Runs `function` on the compute thread, and then `done` with its result on the I/O thread."""

    def __call__(self, function: Callable[[], T], done: Callable[[T], None]) -> None: ...


class Finished(NamedTuple):
    """One finished unit of work, its result or the exception that ended it, and its duration in seconds."""

    work: Any
    result: Any
    error: BaseException | None
    seconds: float


class Compute:
    """The thread that runs units of work in order.

    Args:
        run: executes one unit of work; called on the thread only.
        limit: units of work inside at once.
        name: of the thread.
    """

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
        """Readable when `collect` has something to return."""
        return self._wake

    @property
    def waiting(self) -> int:
        """Units of work that are not finished."""
        return self._inside + len(self._backlog)

    def submit(self, work: Any) -> None:
        self._backlog.append(work)
        self._feed()

    def collect(self) -> list[Finished]:
        """The work finished since the last call, in the order of submission."""
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
        """Finish the work inside, then stop. Waits at most `timeout` seconds."""
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
            result, error, began = None, None, time.monotonic()
            try:
                result = self._run(item[0])
            except BaseException as caught:
                error = caught
            self._finished.append(Finished(item[0], result, error, time.monotonic() - began))
            os.eventfd_write(self._wake, 1)
