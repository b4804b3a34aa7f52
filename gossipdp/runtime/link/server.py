"""The daemon's end of the link: one training process at a time, or the ranks of one group, served from the I/O loop.

Nothing here waits or looks into a vector. `Trainer` serves the process that is attached.
"""

from __future__ import annotations

import logging
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gossipdp.errors import HardwareError, RemoteProtocolError
from gossipdp.protocol.schema import MAX_BYTES, Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.descriptors import accept
from gossipdp.runtime.link.events import Detached, LinkEvent, Told, TurnedAway
from gossipdp.runtime.link.messages import (
    LINK_VERSION,
    Closing,
    FromDaemon,
    Hello,
    Rank,
    Reason,
    Refused,
    decode_from_training,
    encode,
)
from gossipdp.runtime.link.region import Allocation, Region, read_blob
from gossipdp.runtime.link.trainer import Trainer, no_memory, refusal
from gossipdp.runtime.unix_sockets import Listening, receive, socket_path, user_of

__all__ = ["NO_ROOM", "LinkServer"]

log = logging.getLogger("gossipdp.link")

BACKLOG: Final = 1024
"""connections that wait to be accepted. The ranks of a group come at once, and a rank that the kernel turns away has no
daemon."""
MAX_ARRIVING: Final = 64
"""connections that have not said hello; past this the oldest is closed"""
NO_ROOM: Final = "the model does not fit in this host's memory"


def _fits(parameters: int, shared: int) -> None:
    """No check of the memory."""


class LinkServer:
    """Serves one training process at a time; lives in the daemon's I/O loop.

    Args:
        home: the peer's home; made if it does not exist.
        shortage: returns what a GD-502 says, "seen" and "do", if a model's shared memory does not fit. Called with
            its parameters and the bytes of shared memory that exist already.

    Raises:
        HardwareError: GD-104, another daemon serves this home, or the socket cannot be made.
    """

    def __init__(self, home: Path, shortage: Callable[[int, int], tuple[str, str] | None] = _fits) -> None:
        self.path, self._shortage = socket_path(home), shortage
        self._dropped = 0
        self._arriving: dict[int, socket.socket] = {}
        self._trainer: Trainer | None = None
        self._left: weakref.ref[Region] | None = None
        """the memory of the process before, which exists as long as it is mapped"""
        self._again = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """always readable: polled while shared memory is being allocated"""
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._listening = Listening(self.path, socket.SOCK_SEQPACKET, BACKLOG)
        except OSError as error:
            os.close(self._again)
            raise HardwareError(
                "GD-104",
                "the socket for training processes cannot be opened",
                seen=f"{self.path}: {error.strerror}",
                do="stop the other daemon of this home, or use another --home",
            ) from None

    @property
    def region(self) -> Region | None:
        """The vectors shared with the training process; None without one."""
        return None if self._trainer is None else self._trainer.region

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that exist now."""
        left = None if self._left is None else self._left()
        return (0 if left is None else left.bytes) + (0 if self._trainer is None else self._trainer.shared_bytes)

    @property
    def dropped(self) -> int:
        """Messages that training processes never read."""
        return self._dropped + (0 if self._trainer is None else self._trainer.dropped)

    def filenos(self) -> list[int]:
        """Descriptors to poll for reading; call `handle` for a readable one."""
        fds = [self._listening.socket.fileno(), *self._arriving]
        if self._trainer is not None:
            fds += self._trainer.filenos()
            if self._trainer.allocating:
                fds.append(self._again)
        return fds

    def renew(self) -> None:
        """Listen anew if the socket's file is gone."""
        self._listening.renew()

    def handle(self, fd: int) -> list[LinkEvent]:
        """What happened on `fd`; [] for a descriptor closed meanwhile."""
        trainer = self._trainer
        if fd == self._listening.socket.fileno():
            return self._accept()
        if fd in self._arriving:
            return self._greet(fd)
        if trainer is None:
            return []
        if fd == trainer.connection.fileno():
            return self._read(trainer)
        if fd == self._again:
            return trainer.allocate()
        return trainer.read_rank(fd) if trainer.has_rank(fd) else []

    def send(self, message: FromDaemon, files: Sequence[Buffer] = ()) -> None:
        """Tell the training process, if there is one. Each of `files` goes with it as a sealed memory file."""
        if self._trainer is not None:
            self._trainer.send(message, files)

    def refuse(self, code: str, cause: str, seen: str = "", do: str = "", mismatch: str = "") -> None:
        """Send the training process away; its Detached follows."""
        if self._trainer is not None:
            self._trainer.send(refusal(code, cause, seen, do, mismatch))
            self._trainer.end(f"refused: {code}")

    def detach(self, reason: str = "the daemon is closing") -> None:
        """Say goodbye to the training process; its Detached follows."""
        if self._trainer is not None:
            self._trainer.send(Closing())
            self._trainer.end(reason)

    def close(self) -> None:
        if self._listening.socket.fileno() < 0:
            return
        self.detach()
        if self._trainer is not None:
            self._trainer.close()
            self._forget(self._trainer)
        for connection in self._arriving.values():
            connection.close()
        self._arriving.clear()
        self._listening.close()
        os.close(self._again)

    def _read(self, trainer: Trainer) -> list[LinkEvent]:
        events = trainer.read()
        if events and isinstance(events[-1], Detached):
            self._forget(trainer)
        return events

    def _forget(self, trainer: Trainer) -> None:
        self._dropped += trainer.dropped
        self._left = None if trainer.region is None else weakref.ref(trainer.region)
        self._trainer = None

    # -- arriving ---------------------------------------------------------------------------------------------

    def _accept(self) -> list[LinkEvent]:
        """Accept connections, but no more than may be arriving at once: other descriptors need their turn."""
        events: list[LinkEvent] = []
        for _ in range(MAX_ARRIVING):
            if (connection := accept(self._listening.socket)) is None:
                break
            connection.setblocking(False)
            if user_of(connection) != os.geteuid():
                log.warning("a process of user %d tried to attach", user_of(connection))
                connection.close()
                continue
            if len(self._arriving) >= MAX_ARRIVING:
                oldest = next(iter(self._arriving))
                events += self._greet(oldest)  # its hello may wait unread
                if oldest in self._arriving:
                    self._arriving.pop(oldest).close()
            self._arriving[connection.fileno()] = connection
        return events

    def _greet(self, fd: int) -> list[LinkEvent]:
        """Read the hello of a new connection."""
        connection = self._arriving[fd]
        try:
            packet, fds = receive(connection)
        except BlockingIOError:
            return []
        except OSError:
            packet, fds = b"", []
        del self._arriving[fd]
        try:
            return self._admit(connection, packet, fds)
        finally:
            for received in fds:
                os.close(received)

    def _admit(self, connection: socket.socket, packet: bytes, fds: list[int]) -> list[LinkEvent]:
        events: list[LinkEvent] = []
        try:
            hello = decode_from_training(packet)
            if isinstance(hello, Rank) and hello.version == LINK_VERSION:
                self._admit_rank(connection, hello)
                return []
            if isinstance(hello, Reason) and hello.version == LINK_VERSION:
                connection.close()
                return [Told(hello.code, hello.text, hello.exit, hello.alone, hello.lost_steps)]
            if not isinstance(hello, Hello) or hello.version != LINK_VERSION or len(fds) != 1:
                raise RemoteProtocolError("not a hello of this version")
            data = read_blob(fds[0], MAX_BYTES)
            schema = Schema.from_bytes(data)
            if schema.digest != hello.schema:
                raise RemoteProtocolError("the schema is not the one announced")
        except (RemoteProtocolError, ValueError, OSError) as error:
            if packet:
                do = "install the same version of gossipdp for the daemon and the training process; restart the daemon"
                _send_last(connection, refusal("GD-302", "the daemon does not understand this process", str(error), do))
            connection.close()
            return []
        if self._trainer is not None:
            if not self._trainer.gone():
                _send_last(connection, _occupied(self._trainer))
                connection.close()
                return [TurnedAway(hello.pid, self._trainer.hello.pid)]
            while self._trainer is not None:
                events += self._read(self._trainer)
        if (short := self._shortage(schema.size, self.shared_bytes)) is not None:
            _send_last(connection, refusal("GD-502", NO_ROOM, *short))
            connection.close()
            return events
        try:
            allocation = Allocation(schema.size)
        except OSError as error:
            _send_last(connection, no_memory(schema.size, error))
            connection.close()
            return events
        self._trainer = Trainer(connection, hello, data, allocation)
        return events

    def _admit_rank(self, connection: socket.socket, hello: Rank) -> None:
        if self._trainer is None or not self._trainer.admit_rank(connection, hello):
            seen = f"rank {hello.rank} of the group of process {hello.leader}"
            do = "call attach once on every rank of one group"
            _send_last(connection, refusal("GD-503", "this rank does not belong to the attached group", seen, do))
            connection.close()


def _occupied(trainer: Trainer) -> Refused:
    return refusal(
        "GD-503",
        "another training process is attached to this daemon",
        f"process {trainer.hello.pid}",
        "stop it, or give this one a daemon of its own (--home)",
    )


def _send_last(connection: socket.socket, message: Refused) -> None:
    """Send the only message that a refused process gets, if it still listens."""
    try:
        connection.send(encode(message))
    except OSError:
        pass
