"""A thread that may block while it watches something outside of this process. A descriptor tells what it finds."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

__all__ = ["Watch"]

GOODBYE: Final = 2.0
"""most seconds that `close` waits for the thread"""
F = TypeVar("F")


class Watch(ABC, Generic[F]):
    """The base of what watches. The thread begins with the constructor, which a subclass calls last.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._found: queue.SimpleQueue[F] = queue.SimpleQueue()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does until `_stop` is set. It calls `_tell`."""

    def _tell(self, found: F) -> None:
        self._found.put(found)
        with contextlib.suppress(OSError):
            self._write.send(b"!")

    def fileno(self) -> int:
        """Readable when `collect` has something new."""
        return self._read.fileno()

    def collect(self) -> list[F]:
        """What was found since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._read.recv(64)
        found = []
        while not self._found.empty():
            found.append(self._found.get_nowait())
        return found

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(GOODBYE)
        self._read.close()
        self._write.close()
