"""The training process's end of the link. Only `Link.wait` waits, and nothing here may know torch."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from gossipdp.errors import RemoteProtocolError, UnreachableError
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_CARRIED
from gossipdp.runtime.link.forks import leave_in_forks
from gossipdp.runtime.link.messages import (
    LINK_VERSION,
    FromDaemon,
    FromTraining,
    Hello,
    Rank,
    RegionReady,
    Renewed,
    Session,
    decode_from_daemon,
    encode,
)
from gossipdp.runtime.link.region import Region, map_sealed, write_blob
from gossipdp.runtime.unix_sockets import (
    address,
    is_default,
    others_that_run,
    receive,
    socket_path,
    supervised,
    user_of,
)

__all__ = ["Link"]


class Link:
    """One connection to the daemon. `connect` makes it, and `hello` begins the dialogue."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.region: Region | None = None
        """set once `receive` has returned RegionReady"""
        self.carried = NOTHING
        """state beside the model, as the last Session or Renewed brought it"""
        self.lost = ""
        """why the daemon is gone; "" while it is there"""
        self._closing = threading.RLock()  # reentrant: the garbage collector may close the link while this thread sends
        """held while sending and closing: a closed descriptor's number may belong to another file"""
        leave_in_forks(self)

    def __del__(self) -> None:
        # Not by `weakref.finalize`: the collector would run that before the last messages of an ending process.
        self._connection.close()

    @classmethod
    def connect(cls, home: Path) -> Link:
        """Reach the daemon of `home`; returns at once.

        Raises:
            UnreachableError: GD-105, no daemon serves this home. Its cause is a BlockingIOError if a daemon does, but
                its queue is full now.
        """
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # no descriptor left: training goes on and tries again later
            raise _no_daemon(home, error) from None
        try:
            connection.setblocking(False)
            with address(socket_path(home)) as where:
                connection.connect(where)
            if user_of(connection) != os.geteuid():
                raise OSError(errno.EPERM, f"served by user {user_of(connection)}")
        except OSError as error:
            connection.close()
            raise _no_daemon(home, error) from error
        return cls(connection)

    def hello(self, schema: Schema, world: int = 1) -> None:
        """Introduce this process: the schema of its model, and the number of processes that train the replica."""
        try:
            fd = write_blob(schema.to_bytes())
        except OSError as error:
            self.lost = f"no memory file: {error.strerror}"
            return
        try:
            hello = Hello(LINK_VERSION, os.getpid(), world, schema.digest)
            socket.send_fds(self._connection, [encode(hello)], [fd])
        except OSError:
            pass  # the end-of-file will tell
        finally:
            os.close(fd)

    def hello_as_rank(self, rank: int, leader: int) -> None:
        """Introduce this process as another rank of the group whose leader is process `leader`."""
        self.send(Rank(LINK_VERSION, os.getpid(), leader, rank))

    def send(self, message: FromTraining, files: Sequence[int] = ()) -> bool:
        """Send a message. Any thread may send. The caller closes `files`.

        Returns:
            False if the daemon cannot take it now or is gone; `receive` finds out which.
        """
        with self._closing:
            try:
                socket.send_fds(self._connection, [encode(message)], files)
            except OSError:
                return False
        return True

    def receive(self) -> list[FromDaemon]:
        """The daemon's messages since the last call; never waits. Sets `lost` once the daemon is gone."""
        messages: list[FromDaemon] = []
        while not self.lost:
            try:
                packet, fds = receive(self._connection)
            except BlockingIOError:
                break
            except OSError as error:
                self.lost = f"the connection to the daemon broke: {error.strerror}"
                break
            try:
                if not packet:
                    self.lost = "the daemon is gone"
                    break
                message = decode_from_daemon(packet)
                if isinstance(message, RegionReady):
                    if len(fds) not in (1, 2):
                        raise RemoteProtocolError("a region without its memory")
                    self.region = Region(fds[0], message.size, *fds[1:])
                elif isinstance(message, Session | Renewed):
                    self._take(message, [map_sealed(each, MOST_CARRIED) for each in fds])
                messages.append(message)
            except (RemoteProtocolError, ValueError, OSError) as error:
                self.lost = str(error)
            finally:
                for received in fds:
                    os.close(received)
        if self.lost:
            self.close()
        return messages

    def _take(self, message: Session | Renewed, files: Sequence[Buffer]) -> None:
        if len(files) != (1 if isinstance(message, Renewed) else 2 * message.carries):
            raise RemoteProtocolError(f"{type(message).__name__} with {len(files)} files")
        if isinstance(message, Renewed):
            self.carried = Carried(self.carried.reference, files[0])
        else:
            self.carried = Carried(*files)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a message or the end of the daemon. Returns whether one came."""
        if self.lost:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(1000.0 * timeout))

    def close(self) -> None:
        """Leave. The region stays mapped while its arrays are used."""
        self.lost = self.lost or "closed"
        with self._closing:
            self._connection.close()

    def leave_to_parent(self) -> None:
        """In a forked child: a thread of the parent, which the child does not have, may have held the lock."""
        self._closing = threading.RLock()
        self.close()


def _no_daemon(home: Path, error: OSError) -> UnreachableError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        cause, do = "too many open files to reach the daemon", "raise this process's limit: `ulimit -n 8192`"
        return UnreachableError("GD-105", cause, seen=error.strerror or "", do=do)
    note = " (the default home: no other was named)" if is_default(home) else ""
    return UnreachableError(
        "GD-105", "no daemon on this host", seen=f"{socket_path(home)}: {error.strerror}{note}", do=_how_to_reach(home)
    )


def _how_to_reach(home: Path) -> str:
    """What to do where no daemon of `home` answers."""
    if supervised(home):
        return f"nothing: the supervisor restarts it; {home / 'log'} says why it ended"
    if running := others_that_run(home):
        named = " or ".join(f"GOSSIPDP_HOME={each}" for each in running[:3])
        return f"name the home of the daemon that runs: {named}"
    return (
        "start one: `gossipdp up --network NAME -- CMD` on the first host, `gossipdp join @invite -- CMD` on the "
        "others; or set GOSSIPDP_HOME to the home of one that runs; GOSSIPDP_OFF=1 trains without a daemon"
    )
