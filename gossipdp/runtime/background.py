"""Blocking calls in threads of their own, few at a time, whose results are collected without waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["MAX_ERRANDS", "Errands"]

MAX_ERRANDS: Final = 8
R = TypeVar("R")


class Errands(Generic[R]):
    """Args:

    name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._done: queue.SimpleQueue[tuple[str, R]] = queue.SimpleQueue()
        self.pending = 0

    def start(self, key: str, call: Callable[[], R]) -> bool:
        """Run `call`, which must not raise; `collect` returns its result under `key`. False: too many run already."""
        if self.pending >= MAX_ERRANDS:
            return False

        def run() -> None:
            self._done.put((key, call()))

        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no thread left
            return False
        self.pending += 1
        return True

    def collect(self) -> list[tuple[str, R]]:
        """What has come since the last call."""
        done = []
        while not self._done.empty():
            done.append(self._done.get_nowait())
            self.pending -= 1
        return done
