"""Sending on connections, and the bounded queues of messages that full connections do not take yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Connection
from gossipdp.runtime.network.context import LinksContext

__all__ = ["RETRY", "SendQueues"]

RETRY: Final = 0.005
"""seconds between attempts to empty a queue: POLLOUT of a ROUTER is true even for a full peer"""


class SendQueues:
    """Frames that wait for each connection, within bounds.

    Args:
        elsewhere: returns the bytes that wait elsewhere and count towards the same bound.
    """

    def __init__(self, context: LinksContext, elsewhere: Callable[[], int]) -> None:
        self._context, self._elsewhere = context, elsewhere
        self._queued: dict[Connection, None] = {}
        self._dead: list[Connection] = []

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a connection, those elsewhere included."""
        return self._elsewhere() + sum(connection.queued_bytes for connection in self._queued)

    @property
    def waiting(self) -> bool:
        return bool(self._queued)

    @property
    def has_dead(self) -> bool:
        """Whether `take_dead` has connections to return."""
        return bool(self._dead)

    def take_dead(self) -> list[Connection]:
        """Connections that turned out to be gone since the last call."""
        dead, self._dead = self._dead, []
        return dead

    def write(self, connection: Connection, frames: Sequence[Buffer], size: int = 0) -> bool:
        """Send, or queue if the connection is full. `size` 0 marks a service message.

        Returns:
            False if the message was dropped.
        """
        try:
            if not connection.queue and self._push(connection, frames, size):
                return True
        except BrokenPipeError:
            self._dead.append(connection)
            return self._context.drop("link down", int(size > 0))  # a service message is no lost message
        if not self.fits(len(connection.queue), connection.queued_bytes, size):
            return self._context.drop("queue")
        connection.enqueue(frames, size)
        self._queued[connection] = None
        self._context.counters.count_full()
        return True

    def offer(self, connection: Connection, frames: Sequence[Buffer]) -> bool:
        """Send a service message, with the frames behind it, now or not at all. Returns whether it was sent."""
        try:
            return not connection.queue and self._push(connection, frames, 0)
        except BrokenPipeError:
            self._dead.append(connection)
            return False

    def fits(self, messages: int, queued: int, size: int) -> bool:
        """Whether `size` bytes fit into a queue that holds `messages` messages of `queued` bytes."""
        limits = self._context.limits
        if messages >= limits.queue_messages or queued + size > limits.queue_bytes:
            return False
        return self.queued_bytes + size <= limits.total_bytes

    def probe(self, connection: Connection) -> None:
        """Find out whether an inbound connection still exists."""
        try:
            self._push(connection, signed_hello.pack(signed_hello.Probe()), 0)
        except BrokenPipeError:
            self._dead.append(connection)

    def forget(self, connection: Connection) -> None:
        """Stop sending what waits for `connection`."""
        self._queued.pop(connection, None)

    def flush(self) -> None:
        """Send what connections take by now."""
        for connection in list(self._queued):
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.queue:
                if not self._push(connection, *connection.queue[0]):
                    return
                connection.dequeue()
        except BrokenPipeError:
            self._dead.append(connection)
        self._queued.pop(connection, None)

    def _push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        if not connection.wire.push(connection, frames, size):
            return False
        connection.say(self._context.turn.now)
        if size and connection.link is not None:
            self._context.counters.count_sent(connection.link.peer, connection.lane, size)
        return True
