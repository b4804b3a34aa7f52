"""The daemon's end of the readers' connections (`data_client`), served from the I/O loop. The peer has the answers.

Nothing here waits. A reader that asks too early is answered once the peer knows what other peers have read. A group
without a reader still counts as reading for a while, for example between two passes. Nothing here may know a sample.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from gossipdp.errors import DataError, HardwareError, RemoteProtocolError
from gossipdp.protocol.data.blocks import DataSet, Lease
from gossipdp.protocol.peer import Peer
from gossipdp.runtime.descriptors import accept
from gossipdp.runtime.files import load_state, save_state, set_aside
from gossipdp.runtime.link.data_client import (
    DATA_VERSION,
    Begin,
    Bye,
    Denied,
    Leased,
    Next,
    Over,
    Pass,
    ToReader,
    Used,
    data_path,
    decode_from_reader,
    encode,
)
from gossipdp.runtime.link.data_passes import Passes, Place
from gossipdp.runtime.unix_sockets import Listening, receive, user_of

__all__ = ["DataServer", "Feed"]

log = logging.getLogger("gossipdp.data")

MAX_READERS: Final = 512
"""most connections; further ones are closed"""
BACKLOG: Final = 64
"""connections that wait to be accepted"""
AWAY: Final = 30.0
"""seconds without a reader after which a group counts as gone"""
STATE: Final = "data.json"
T = TypeVar("T")


class Feed(Protocol):
    """Gives the peer one command with the time, and acts on what follows from it."""

    def __call__(self, command: Callable[[Peer, float], T]) -> T: ...


class _Group:
    def __init__(self, data: DataSet, world: int, passes: Passes) -> None:
        self.data, self.world, self.passes = data, world, passes
        self.readers = 0
        """number of connections"""
        self.latest: dict[Place, _Reader] = {}
        """the latest reader of each place"""
        self._empty_since: float | None = None

    def join(self, place: Place, reader: _Reader) -> None:
        """`reader` reads at `place` from now on."""
        before = self.latest.get(place)
        # A reader of the pass before, whose end is not noticed yet, gives its place up.
        if before is None or not before.give_up():
            self.readers += 1
        self.latest[place] = reader

    def leave(self, place: Place) -> None:
        self.readers -= 1
        del self.latest[place]

    def empty_for(self, now: float) -> float:
        """Seconds without a reader, as far as earlier calls have seen it."""
        if self.readers:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        return 0.0 if self._empty_since is None else now - self._empty_since


class _Reader:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.group: tuple[bytes, bytes] | None = None
        self.place: Place = (0, 0)
        self.waiting: Begin | None = None
        """its request, while the peer does not know what other peers have read"""

    def join(self, group: tuple[bytes, bytes], place: Place) -> None:
        self.group, self.place = group, place

    def give_up(self) -> bool:
        """Leave the group. Returns whether the reader was in one."""
        group, self.group = self.group, None
        return group is not None

    def wait_for(self, request: Begin | None) -> None:
        self.waiting = request


class DataServer:
    """Serves blocks of data sets to the readers of this host.

    Args:
        home: the peer's home, which has a link server.
        feed: gives the peer commands.
        damaged: called with the text of a notice if the file of finished blocks is damaged.

    Raises:
        HardwareError: GD-104, the socket cannot be made.
    """

    def __init__(self, home: Path, feed: Feed, damaged: Callable[[str], None]) -> None:
        self._feed = feed
        self._readers: dict[int, _Reader] = {}
        self._groups: dict[tuple[bytes, bytes], _Group] = {}
        """by the group's id and the data's digest"""
        self._path, self._state = data_path(home), home / STATE
        try:
            state = load_state(self._state, bytes)
        except DataError as error:
            state = None
            damaged(set_aside(self._state, error))
        if state is not None:
            feed(lambda peer, _: peer.leasing.restore(state))
        self._snapshot = b""
        try:
            self._listening = Listening(self._path, socket.SOCK_SEQPACKET, BACKLOG)
        except OSError as error:
            raise HardwareError(
                "GD-104", "the socket for readers of data cannot be opened", seen=f"{self._path}: {error.strerror}"
            ) from None

    def filenos(self) -> list[int]:
        return [self._listening.socket.fileno(), *self._readers]

    def handle(self, fd: int) -> None:
        if fd == self._listening.socket.fileno():
            self._accept()
        elif fd in self._readers:
            self._read(self._readers[fd])

    def known(self) -> None:
        """The readers of some data set may begin now."""
        for reader in list(self._readers.values()):
            if reader.waiting is not None:
                self._guard(reader, partial(self._begin, reader, reader.waiting))

    def tick(self, now: float) -> None:
        """Called about twice a second: end groups that have had no reader for AWAY seconds."""
        self._listening.renew()
        for key, group in list(self._groups.items()):
            if group.empty_for(now) >= AWAY:
                group.passes.close()
                del self._groups[key]
                if not any(digest == key[1] for _, digest in self._groups):
                    self._feed(lambda peer, at, digest=key[1]: peer.leasing.close(digest, at))  # type: ignore[misc]

    # Finished blocks are kept with the model that they went into. Both are of the moment when a checkpoint began.

    def snapshot(self) -> None:
        """A checkpoint begins."""
        self._snapshot = self._feed(lambda peer, _: peer.leasing.state())

    def save(self) -> None:
        """The checkpoint is written: keep its blocks. Raises DataError GD-602."""
        save_state(self._state, self._snapshot)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.connection.close()
        self._readers.clear()
        self._listening.close()

    # -- connections ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        if (connection := accept(self._listening.socket)) is None:
            return
        connection.setblocking(False)
        if user_of(connection) != os.geteuid() or len(self._readers) >= MAX_READERS:
            text = "refused a reader of data of user %d: it is another user, or there are too many readers"
            log.warning(text, user_of(connection))
            return connection.close()
        self._readers[connection.fileno()] = _Reader(connection)

    def _read(self, reader: _Reader) -> None:
        try:
            packet, fds = receive(reader.connection)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        for received in fds:
            os.close(received)
        if packet:
            self._guard(reader, lambda: self._take(reader, packet))
        else:
            self._drop(reader, used=False)

    def _guard(self, reader: _Reader, action: Callable[[], None]) -> None:
        try:
            action()
        except RemoteProtocolError as error:
            log.warning("%s", error)
            self._drop(reader, used=False)

    def _take(self, reader: _Reader, packet: bytes) -> None:
        message = decode_from_reader(packet)
        if isinstance(message, Begin):
            return self._begin(reader, message)
        group = None if reader.group is None else self._groups.get(reader.group)
        if group is None or reader.waiting is not None:
            raise RemoteProtocolError(f"{type(message).__name__} before a pass has begun")
        match message:
            case Next(key, first):
                lease = group.passes.next(reader.place, key, first)
                self._say(reader, Over(key) if lease is None else Leased(key, *lease))
            case Used(epoch, block):
                group.passes.used(reader.place, Lease(epoch, block))
            case Bye():
                self._drop(reader, used=True)

    def _drop(self, reader: _Reader, *, used: bool) -> None:
        del self._readers[reader.connection.fileno()]
        reader.connection.close()
        group = None if reader.group is None else self._groups.get(reader.group)
        if group is not None:
            group.leave(reader.place)
            group.passes.gone(reader.place, used=used)

    def _say(self, reader: _Reader, message: ToReader) -> None:
        try:
            reader.connection.send(encode(message))
        except OSError:
            pass  # the end-of-file will tell, and a reader that does not read does not wait

    # -- passes -----------------------------------------------------------------------------------------------

    def _begin(self, reader: _Reader, message: Begin) -> None:
        if message.version != DATA_VERSION:
            seen = f"version {message.version} of the data messages there, {DATA_VERSION} here"
            do = "install the same version of gossipdp for the daemon and the training process; restart the daemon"
            return self._say(reader, Denied("GD-302", "the daemon does not understand this process", seen, do))
        data = DataSet(message.data, message.name, message.blocks)
        key = (message.group, message.data)
        group = self._groups.get(key)
        place = (message.rank, message.slot)
        wrong = message.rank >= message.world or (group is not None and group.world != message.world)
        if wrong or (reader.group is not None and (reader.group, reader.place) != (key, place)):
            raise RemoteProtocolError("a reader of data contradicts itself")
        if not self._feed(lambda peer, now: peer.leasing.open(data, now)):
            seen = f"{message.name!r}, {message.blocks} blocks"
            do = "read fewer data sets at a time"
            return self._say(reader, Denied("GD-309", "this daemon has no room for one more data set", seen, do))
        if group is None:
            group = self._groups[key] = self._open(data, message.world)
        if reader.group is None:
            reader.join(key, place)
            group.join(place, reader)
        reader.wait_for(None)
        if not self._feed(lambda peer, _: peer.leasing.known(data.digest)):
            reader.wait_for(message)
            return
        number, epoch = group.passes.begin(place, message.number)
        readers = self._feed(lambda peer, _: peer.leasing.readers(data.digest))
        self._say(reader, Pass(number, epoch, readers))

    def _open(self, data: DataSet, world: int) -> _Group:
        digest, feed = data.digest, self._feed
        passes = Passes(
            world,
            epoch=lambda: feed(lambda peer, _: peer.leasing.epoch(digest)),
            lease=lambda latest, first, must: feed(
                lambda peer, now: peer.leasing.lease(digest, now, latest=latest, first=first, must=must)
            ),
            finish=lambda lease: feed(lambda peer, now: peer.leasing.finish(digest, lease, now)),
            release=lambda lease: feed(lambda peer, now: peer.leasing.release(digest, lease, now)),
        )
        return _Group(data, world, passes)
