"""Blocking calls, a few at a time, each in its own thread. Their results are collected without waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["MAX_CALLS", "BackgroundCalls"]

MAX_CALLS: Final = 8
R = TypeVar("R")


class BackgroundCalls(Generic[R]):
    """Calls that may block, each on a thread of its own.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._done: queue.SimpleQueue[tuple[str, R]] = queue.SimpleQueue()
        self.pending = 0
        """calls whose results are not collected"""

    def start(self, key: str, call: Callable[[], R]) -> bool:
        """Run `call`, which must not raise. `collect` returns its result under `key`.

        Returns:
            False if MAX_CALLS run already, or the system has no thread left.
        """
        if self.pending >= MAX_CALLS:
            return False

        def run() -> None:
            self._done.put((key, call()))

        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError:
            return False
        self.pending += 1
        return True

    def collect(self) -> list[tuple[str, R]]:
        """Keys and results since the last call."""
        done = []
        while not self._done.empty():
            done.append(self._done.get_nowait())
            self.pending -= 1
        return done
