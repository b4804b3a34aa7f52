"""The daemon's end of the link: one training process at a time, or the ranks of one group, served from the I/O loop.

Nothing here waits: what takes time (allocating shared memory) is done in pieces, and a training process that does not
read is given up after a bounded number of messages. Nothing here may look into a vector.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gossipdp.errors import HardwareError, RemoteProtocolError
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.schema import MAX_BYTES, Schema
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_CARRIED
from gossipdp.runtime.descriptors import accept
from gossipdp.runtime.link.events import (
    Attached,
    Detached,
    LinkEvent,
    ModelWritten,
    MomentsWanted,
    MomentsWritten,
    RankLost,
    Reported,
    Submitted,
)
from gossipdp.runtime.link.messages import (
    LINK_VERSION,
    Applied,
    Closing,
    Farewell,
    FromDaemon,
    FromTraining,
    Hello,
    Moments,
    Rank,
    Ready,
    Refused,
    RegionReady,
    Report,
    Submit,
    WantMoments,
    decode_from_training,
    encode,
)
from gossipdp.runtime.link.ranks import Ranks
from gossipdp.runtime.link.region import Allocation, Region, map_sealed, read_blob, write_sealed
from gossipdp.runtime.unix_sockets import check_private, receive, shut, socket_path, user_of

__all__ = ["LinkServer"]

log = logging.getLogger("gossipdp.link")

BACKLOG: Final = 1024
"""connections that wait to be accepted: the ranks of a group come in one instant, and whom the kernel turns away has
no daemon"""
MAX_ARRIVING: Final = 64
"""connections that have not said hello; past it the oldest is closed"""
MAX_QUEUED: Final = 64
"""messages kept for a training process that does not read; past it, it counts as dead"""


class _Trainer:
    """The one training process served now: the leader, if it has other ranks beside it."""

    def __init__(self, connection: socket.socket, hello: Hello, schema: bytes, allocation: Allocation) -> None:
        self.connection, self.hello, self.schema = connection, hello, schema
        self.allocation: Allocation | None = allocation
        self.region: Region | None = None
        self.ready = self.farewell = False
        self.ranks = Ranks(hello.world)
        self.ending = ""
        """why it is no longer served, once that is so; its socket then only has its end-of-file to tell"""
        self.queue: deque[tuple[bytes, Sequence[int]]] = deque()
        """packets, and the files that go with each"""

    def gone(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(self.ending) or bool(poll.poll(0))

    def end(self, reason: str) -> None:
        if not self.ending:
            self.ending = reason
            self.drop()
            shut(self.connection)

    def drop(self) -> None:
        """Nothing that waits is told any more."""
        for _, files in self.queue:
            _close(files)
        self.queue.clear()


class LinkServer:
    """Serves one training process at a time; lives in the daemon's I/O loop.

    Args:
        home: the peer's home; made if it is not there.

    Raises:
        HardwareError: GD-104, another daemon serves this home, or the socket cannot be made.
    """

    def __init__(self, home: Path) -> None:
        self.path = socket_path(home)
        self.dropped = 0
        """messages that training processes never read"""
        self._arriving: dict[int, socket.socket] = {}
        self._trainer: _Trainer | None = None
        self._again = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._listener = _listen(self.path)
            self._inode = os.stat(self.path).st_ino
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
        """The vectors shared with the training process; None while there is none."""
        return None if self._trainer is None else self._trainer.region

    def filenos(self) -> list[int]:
        """What to poll for reading; asks for `handle`."""
        fds = [self._listener.fileno(), *self._arriving]
        if self._trainer is not None:
            fds.append(self._trainer.connection.fileno())
            fds += self._trainer.ranks.filenos()
            if self._trainer.allocation is not None:
                fds.append(self._again)
        return fds

    def handle(self, fd: int) -> list[LinkEvent]:
        """What came of `fd`; a descriptor closed meanwhile gives []."""
        if fd == self._listener.fileno():
            return self._accept()
        elif fd in self._arriving:
            return self._greet(fd)
        elif self._trainer is not None and fd == self._trainer.connection.fileno():
            return self._read(self._trainer)
        elif self._trainer is not None and fd == self._again:
            return self._allocate(self._trainer)
        elif self._trainer is not None and fd in self._trainer.ranks.filenos():
            return self._read_rank(self._trainer, fd)
        return []

    def send(self, message: FromDaemon, files: Sequence[Buffer] = ()) -> None:
        """Tell the training process, if there is one; each of `files` goes with it as a sealed memory file."""
        trainer = self._trainer
        if trainer is None or trainer.ending:
            return
        fds: list[int] = []
        try:
            for each in files:
                fds.append(write_sealed([each]))
        except OSError as error:
            _close(fds)
            return trainer.end(f"no memory for what is carried: {error.strerror}")
        trainer.queue.append((encode(message), fds))
        self._flush(trainer)

    def refuse(self, code: str, cause: str, seen: str = "", do: str = "") -> None:
        """Send the training process away; its Detached follows."""
        if self._trainer is not None and not self._trainer.ending:
            self.send(_refusal(code, cause, seen, do))
            self._trainer.end(f"refused: {code}")

    def detach(self, reason: str = "the daemon is closing") -> None:
        """Say goodbye to the training process; its Detached follows."""
        if self._trainer is not None and not self._trainer.ending:
            self.send(Closing())
            self._trainer.end(reason)

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self.detach()
        if self._trainer is not None:
            self._forget(self._trainer)
        for connection in self._arriving.values():
            connection.close()
        self._arriving.clear()
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except OSError:
            pass
        self._listener.close()
        os.close(self._again)

    # -- arriving ---------------------------------------------------------------------------------------------

    def _accept(self) -> list[LinkEvent]:
        """All who wait, but no more than may be arriving at once: others want their turn."""
        events: list[LinkEvent] = []
        for _ in range(MAX_ARRIVING):
            if (connection := accept(self._listener)) is None:
                break
            connection.setblocking(False)
            if user_of(connection) != os.geteuid():
                log.warning("a process of user %d tried to attach", user_of(connection))
                connection.close()
                continue
            if len(self._arriving) >= MAX_ARRIVING:
                oldest = next(iter(self._arriving))
                events += self._greet(oldest)  # its hello may be there, unread
                if oldest in self._arriving:
                    self._arriving.pop(oldest).close()
            self._arriving[connection.fileno()] = connection
        return events

    def _greet(self, fd: int) -> list[LinkEvent]:
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
            if not isinstance(hello, Hello) or hello.version != LINK_VERSION or len(fds) != 1:
                raise RemoteProtocolError("not a hello of this version")
            data = read_blob(fds[0], MAX_BYTES)
            schema = Schema.from_bytes(data)
            if schema.digest != hello.schema:
                raise RemoteProtocolError("the schema is not the one announced")
        except (RemoteProtocolError, ValueError, OSError) as error:
            if packet:
                do = "use one version of gossipdp for the daemon and the training processes of a host"
                _say_no(connection, _refusal("GD-302", "daemon and training process disagree", str(error), do))
            connection.close()
            return []
        if self._trainer is not None:
            if not self._trainer.gone():
                _say_no(connection, self._occupied(self._trainer))
                connection.close()
                return []
            while self._trainer is not None:
                events += self._read(self._trainer)
        try:
            allocation = Allocation(schema.size)
        except OSError as error:
            _say_no(connection, _no_memory(schema.size, error))
            connection.close()
            return events
        self._trainer = _Trainer(connection, hello, data, allocation)
        return events

    def _admit_rank(self, connection: socket.socket, hello: Rank) -> None:
        trainer = self._trainer
        known = trainer is not None and not trainer.ending and trainer.hello.pid == hello.leader
        if trainer is None or not known or not trainer.ranks.admit(connection, hello):
            seen = f"rank {hello.rank} of the group of process {hello.leader}"
            do = "attach on every rank of one group, once"
            _say_no(connection, _refusal("GD-503", "this rank has no place at this daemon", seen, do))
            connection.close()

    def _occupied(self, trainer: _Trainer) -> Refused:
        return _refusal(
            "GD-503",
            "another training process is attached to this daemon",
            f"process {trainer.hello.pid}",
            "stop it, or give this one a daemon of its own (--home)",
        )

    def _allocate(self, trainer: _Trainer) -> list[LinkEvent]:
        allocation = trainer.allocation
        if allocation is None:
            return []
        try:
            if not allocation.step():
                return []
            trainer.region = Region(allocation.fd, allocation.size)
            socket.send_fds(trainer.connection, [encode(RegionReady(allocation.size))], [allocation.fd])
            trainer.ranks.share(allocation.fd, allocation.size)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                refusal = _no_memory(allocation.size, error)
                self.refuse(refusal.code, refusal.cause, refusal.seen, refusal.do)
            trainer.end("no shared memory")
            return []
        finally:
            if trainer.region is not None or trainer.ending:
                allocation.close()
                trainer.allocation = None
        return [Attached(trainer.schema, trainer.hello.world, trainer.hello.pid)]

    # -- attached ---------------------------------------------------------------------------------------------

    def _read(self, trainer: _Trainer) -> list[LinkEvent]:
        events: list[LinkEvent] = []
        self._flush(trainer)
        for _ in range(64):
            try:
                packet, fds = receive(trainer.connection)
            except BlockingIOError:
                break
            except OSError as error:
                packet, fds = b"", []
                trainer.ending = trainer.ending or f"its connection broke: {error.strerror}"
            try:
                files = [map_sealed(received, MOST_CARRIED) for received in fds]
            except (ValueError, OSError) as error:
                files = []
                log.warning("training process %d: what it carries is not taken: %s", trainer.hello.pid, error)
            for received in fds:
                os.close(received)
            if not packet:
                if events:
                    break  # its last words first, while its region is there; the end-of-file stays to be read
                self._forget(trainer)
                if trainer.hello.world > 1 and not (trainer.ending or trainer.farewell):
                    events.append(RankLost(0, trainer.hello.pid))
                events.append(Detached(trainer.ending or "it ended"))
                break
            if trainer.ending:
                continue
            try:
                events += _events(decode_from_training(packet), trainer, files)
            except RemoteProtocolError as error:
                log.warning("training process %d: %s", trainer.hello.pid, error)
                trainer.end(str(error))
        return events

    def _read_rank(self, trainer: _Trainer, fd: int) -> list[LinkEvent]:
        try:
            events = trainer.ranks.read(fd)
        except RemoteProtocolError as error:
            log.warning("a rank of process %d: %s", trainer.hello.pid, error)
            trainer.end(str(error))
            return []
        trainer.ready = trainer.ready or any(isinstance(event, ModelWritten) for event in events)
        lost = events[-1] if events else None
        if isinstance(lost, RankLost):
            if trainer.ending:
                return events[:-1]  # of several that die, the first took the others along
            trainer.end(f"rank {lost.rank} (process {lost.pid}) died")
        return events

    def _flush(self, trainer: _Trainer) -> None:
        while trainer.queue and not trainer.ending:
            try:
                socket.send_fds(trainer.connection, [trainer.queue[0][0]], trainer.queue[0][1])
            except BlockingIOError:
                if len(trainer.queue) > MAX_QUEUED:
                    self.dropped += len(trainer.queue)
                    trainer.end("it does not read what it is told")
                return
            except OSError:
                return trainer.drop()  # its end-of-file tells the rest
            _close(trainer.queue.popleft()[1])

    def _forget(self, trainer: _Trainer) -> None:
        if trainer.allocation is not None:
            trainer.allocation.close()
        trainer.ranks.close()
        trainer.drop()
        trainer.connection.close()
        self._trainer = None


def _events(message: FromTraining, trainer: _Trainer, files: Sequence[Buffer]) -> list[LinkEvent]:
    due = 2 if isinstance(message, Ready) and message.carries else int(isinstance(message, Submit) and message.tells)
    if len(files) != due:
        raise RemoteProtocolError(f"{type(message).__name__} with {len(files)} files")
    match message:
        case Ready() if trainer.region is not None and not trainer.ready:
            events = trainer.ranks.of_leader(message, Carried(*files))
            trainer.ready = bool(events)
            return events
        case Submit(session, snapshot, applied, steps, samples, loss, whole) if trainer.ready:
            state = files[0] if files else None
            submitted = Submitted(session, snapshot, applied, steps, samples, loss, state)
            return trainer.ranks.whole(("snapshot", session, snapshot), submitted, alone=whole)
        case Applied() if trainer.ready:
            return trainer.ranks.of_leader(message)
        case Moments(session, number, which, steps) if trainer.ready:
            written = MomentsWritten(session, number, which, steps)
            return trainer.ranks.whole(("moments", session, number), written)
        case WantMoments(session, which) if trainer.ready:
            return [MomentsWanted(session, which)]
        case Farewell():
            trainer.farewell = True
            return []
        case Report(session, loss, stall_seconds, lost_steps, uncounted):
            return [Reported(session, loss, stall_seconds, lost_steps, uncounted)]
    raise RemoteProtocolError(f"{type(message).__name__} out of turn")


def _close(files: Sequence[int]) -> None:
    for each in files:
        os.close(each)


def _refusal(code: str, cause: str, seen: str, do: str) -> Refused:
    return Refused(code[:16], cause[:400], seen[:4000], do[:400])


def _no_memory(size: int, error: OSError) -> Refused:
    seen = f"{12 * size / 2**20:.0f} MiB asked for: {error.strerror}"
    return _refusal("GD-502", "no memory to share with the training process", seen, "free memory, or raise its limit")


def _say_no(connection: socket.socket, refusal: Refused) -> None:
    try:
        connection.send(encode(refusal))
    except OSError:
        pass


def _listen(path: Path) -> socket.socket:
    if path.name != "link.sock":
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_private(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        if path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.setblocking(False)
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, "a daemon is listening there")
            path.unlink()
        # A socket file takes the mode of its descriptor: so it is never open to others, whatever the umask.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
