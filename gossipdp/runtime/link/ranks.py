"""The other ranks of a replica group at the daemon: their connections, and their parts of the leader's messages.

A snapshot is whole, and a slot's memory free, once every rank has said so. Nothing here may look into a vector.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.runtime.link.events import LinkEvent, ModelWritten, RankLost, SlotApplied
from gossipdp.runtime.link.messages import (
    Applied,
    Copied,
    Farewell,
    FromTraining,
    Moments,
    Rank,
    Ready,
    RegionReady,
    decode_from_training,
    encode,
)
from gossipdp.runtime.unix_sockets import receive

__all__ = ["Parts", "Ranks"]

log = logging.getLogger("gossipdp.link")

MOST_OPEN: Final = 8
"""most messages with some parts missing; older ones belong to sessions that are over"""


class Parts:
    """Counts the ranks that have said their part of each message."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._said: dict[tuple[object, ...], set[int]] = {}
        self._events: dict[tuple[object, ...], LinkEvent] = {}

    def said(self, rank: int, key: tuple[object, ...], event: LinkEvent | None, *, whole: bool = False) -> bool:
        """`rank` has said its part of `key`.

        Args:
            event: the leader's event for it; None from another rank.
            whole: the leader's part is all.

        Returns:
            Whether all parts are here; `take` then returns the event.
        """
        ranks = self._said.setdefault(key, set())
        ranks.add(rank)
        if event is not None:
            self._events[key] = event
        while len(self._said) > MOST_OPEN:
            stale = next(iter(self._said))
            del self._said[stale]
            self._events.pop(stale, None)
        return key in self._events and (whole or len(ranks) == self._world)

    def take(self, key: tuple[object, ...]) -> LinkEvent:
        del self._said[key]
        return self._events.pop(key)


class _Connection(NamedTuple):
    socket: socket.socket
    rank: int
    pid: int


class Ranks:
    """The connections of all ranks but the leader's.

    Args:
        world: ranks of the group, the leader's included.
    """

    def __init__(self, world: int) -> None:
        self.world, self.parts = world, Parts(world)
        self._connections: dict[int, _Connection] = {}
        self._region: tuple[int, int] | None = None
        """a descriptor of the shared memory, and its size in parameters"""

    def filenos(self) -> Iterator[int]:
        return iter(self._connections)

    def admit(self, connection: socket.socket, hello: Rank) -> bool:
        """Another rank has come. Returns False if there is no place for it."""
        taken = any(other.rank == hello.rank for other in self._connections.values())
        if hello.rank >= self.world or taken:
            return False
        self._connections[connection.fileno()] = _Connection(connection, hello.rank, hello.pid)
        self._share(connection)
        return True

    def share(self, fd: int, size: int) -> None:
        """The shared memory is ready: hand it to all ranks, also to those that come later."""
        self._region = os.dup(fd), size
        for other in self._connections.values():
            self._share(other.socket)

    def _share(self, connection: socket.socket) -> None:
        if self._region is not None:
            fd, size = self._region
            try:
                socket.send_fds(connection, [encode(RegionReady(size))], [fd])
            except OSError:
                pass  # the end-of-file will tell

    def read(self, fd: int) -> list[LinkEvent]:
        """What happened on the connection `fd`. A rank that goes without Farewell has died.

        Raises:
            RemoteProtocolError: the rank sent a message that it may not send.
        """
        events: list[LinkEvent] = []
        connection = self._connections[fd]
        while True:
            try:
                packet, fds = receive(connection.socket)
            except BlockingIOError:
                return events
            except OSError:
                packet, fds = b"", []
            for received in fds:
                os.close(received)
            if not packet:
                self._forget(fd)
                return [*events, RankLost(connection.rank, connection.pid)]
            message = decode_from_training(packet)
            if isinstance(message, Farewell):
                self._forget(fd)
                return events
            events += self._part(connection.rank, message)

    def _part(self, rank: int, message: FromTraining) -> list[LinkEvent]:
        match message:
            case Ready():
                key: tuple[object, ...] = ("model",)
            case Copied(session, snapshot):
                key = ("snapshot", session, snapshot)
            case Moments(session, number):
                key = ("moments", session, number)
            case Applied(session, slot):
                key = ("slot", session, slot)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} from rank {rank}")
        return [self.parts.take(key)] if self.parts.said(rank, key, None) else []

    def of_leader(self, message: Ready | Applied, carried: Carried = NOTHING) -> list[LinkEvent]:
        """The event of a leader's message, once every rank has said its part."""
        if isinstance(message, Ready):
            live = message.run, message.clock, message.steps, message.samples
            written = ModelWritten(message.empty, *live, carried, message.loaded)
            return self.whole(("model",), written)
        event = SlotApplied(message.session, message.slot)
        return self.whole(("slot", message.session, message.slot), event)

    def whole(self, key: tuple[object, ...], event: LinkEvent, *, alone: bool = False) -> list[LinkEvent]:
        """[event] if every rank has said its part of it, or the leader did all of it `alone`."""
        return [self.parts.take(key)] if self.parts.said(0, key, event, whole=alone) else []

    def close(self) -> None:
        for fd in list(self._connections):
            self._forget(fd)
        if self._region is not None:
            os.close(self._region[0])
            self._region = None

    def _forget(self, fd: int) -> None:
        self._connections.pop(fd).socket.close()
