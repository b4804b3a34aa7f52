"""Messages that were read from sockets and wait for the peer: one bounded queue for each connection, taken in turn.

libzmq gets no receive mark. At its mark it stops reading a connection, and such a connection may abort the process
when the other end vanishes (zeromq/libzmq#4841). So everything is read at once, and the bounds are here. A connection
past them is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Inbox"]

OVERHEAD: Final = 1024
"""bytes that an unread message costs besides its frames"""

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")


class Inbox(Generic[K, M]):
    """Unread messages.

    Args:
        messages: bound for one connection, in messages.
        size: bound for one connection, in bytes.
        total: bound for all connections together, in bytes.
    """

    def __init__(self, messages: int, size: int, total: int) -> None:
        self._messages, self._size, self._total = messages, size, total
        self._waiting: dict[K, deque[tuple[M, int]]] = {}
        self._bytes: dict[K, int] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, key: K, message: M, size: int) -> K | None:
        """Queue a message of `size` bytes.

        Returns:
            The connection to close because it is past a bound; None if all are within.
        """
        queue = self._waiting.setdefault(key, deque())
        queue.append((message, size))
        self._count(key, size + OVERHEAD)
        if len(queue) > self._messages or self._bytes[key] > self._size:
            return key
        if self.bytes > self._total:
            return max(self._bytes, key=self._bytes.__getitem__)
        return None

    def take(self, messages: int, size: int) -> Iterator[tuple[K, M, int]]:
        """Up to `messages` messages and about `size` bytes: one of each connection in turn."""
        taken = 0
        for _ in range(messages):
            if not self._waiting or taken >= size:
                return
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            message, length = queue.popleft()
            self._count(key, -length - OVERHEAD)
            if queue:
                self._waiting[key] = queue  # last in the order
            else:
                del self._bytes[key]
            taken += length
            yield key, message, length

    def drop(self, key: K) -> deque[tuple[M, int]]:
        """Forget a connection. Returns its messages and their sizes."""
        self.bytes -= self._bytes.pop(key, 0)
        return self._waiting.pop(key, deque())

    def _count(self, key: K, size: int) -> None:
        self.bytes += size
        self._bytes[key] = self._bytes.get(key, 0) + size
