"""Threads that carry out work: jobs in, results out in the order of submission.

The I/O thread submits and collects. An eventfd in its poll set tells it that results wait. At most `limit` units of
work are inside at once and the others wait outside, so that the length of the queue is visible.

With several workers, work at place p runs on worker p mod workers. Work of one place therefore runs in order. Work
without a place runs alone: after all work before it, and before all work after it. The I/O thread holds work back until
it may begin, so the workers need no lock. With one worker all work runs in order. No protocol may stand here.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Call", "Compute", "Finished"]

LIMIT = 64
T = TypeVar("T")


class Call(Protocol):
    """Runs `function` on a compute thread, and then `done` with its result on the I/O thread.

    Work of one `place` runs in order. Without a place, `function` runs alone.
    """

    def __call__(self, function: Callable[[], T], done: Callable[[T], None], place: int | None = None) -> None: ...


class Finished(NamedTuple):
    """One finished unit of work, its result or the exception that ended it, and its duration in seconds."""

    work: Any
    result: Any
    error: BaseException | None
    seconds: float


class _Unit:
    """One unit of work, and what became of it. The worker sets `finished` once; the I/O thread reads it."""

    __slots__ = ("finished", "work")

    def __init__(self, work: Any) -> None:
        self.work = work
        self.finished: Finished | None = None


class Compute:
    """Threads that run units of work.

    Args:
        run: executes one unit of work; called on the threads only.
        limit: units of work inside at once.
        workers: number of threads.
        name: of the threads, also for the system.
    """

    def __init__(
        self, run: Callable[[Any], Any], *, limit: int = LIMIT, workers: int = 1, name: str = "compute"
    ) -> None:
        self._run, self._limit = run, limit
        self._backlog: deque[tuple[Any, int | None]] = deque()
        self._inside: deque[_Unit] = deque()
        """in the order of submission"""
        self._alone = False
        """what is inside has no place"""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: list[queue.SimpleQueue[_Unit | None]] = [queue.SimpleQueue() for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(asked, name), name=name, daemon=True) for asked in self._asked
        ]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        """Readable when `collect` may have something to return."""
        return self._wake

    @property
    def waiting(self) -> int:
        """Units of work whose results were not collected."""
        return len(self._inside) + len(self._backlog)

    def submit(self, work: Any, place: int | None = None) -> None:
        """Run `work` after all work of this place that was submitted before; without a place, alone."""
        self._backlog.append((work, place))
        self._feed()

    def collect(self) -> list[Finished]:
        """The work finished since the last call, in the order of submission. Later work waits for earlier work."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return []
        finished = []
        while self._inside and (first := self._inside[0].finished) is not None:
            self._inside.popleft()
            finished.append(first)
        self._feed()
        return finished

    def close(self, timeout: float = 5.0) -> None:
        """Finish the work inside, then stop. Waits at most `timeout` seconds for each thread."""
        self._backlog.clear()
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join(timeout)
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._wake)

    def _feed(self) -> None:
        while self._backlog and len(self._inside) < self._limit:
            work, place = self._backlog[0]
            alone = place is None and len(self._asked) > 1
            if self._inside and alone != self._alone:
                return
            self._backlog.popleft()
            self._alone = alone
            unit = _Unit(work)
            self._inside.append(unit)
            self._asked[(place or 0) % len(self._asked)].put(unit)

    def _work(self, asked: queue.SimpleQueue[_Unit | None], name: str) -> None:
        with suppress(OSError):  # proc_pid_comm(5): `top -H` shows it
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        while (unit := asked.get()) is not None:
            result, error, began = None, None, time.monotonic()
            try:
                result = self._run(unit.work)
            except BaseException as caught:
                error = caught
            unit.finished = Finished(unit.work, result, error, time.monotonic() - began)
            os.eventfd_write(self._wake, 1)
