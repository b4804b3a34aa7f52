"""The training process that a link server serves: its messages in order, its shared memory, its other ranks.

Nothing here waits. A training process that does not read its messages is given up after a bounded number of them.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_CARRIED
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
    Applied,
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
from gossipdp.runtime.link.region import Allocation, Region, map_sealed, write_sealed
from gossipdp.runtime.unix_sockets import receive, shut

__all__ = ["MAX_QUEUED", "Trainer", "no_memory", "refusal"]

log = logging.getLogger("gossipdp.link")

MAX_QUEUED: Final = 64
"""messages kept for a training process that does not read; past this it counts as dead"""
READ: Final = 64
"""most packets read in one turn"""


class Trainer:
    """One training process, or the leader of a group with the group's other ranks.

    Args:
        schema: canonical bytes.
        allocation: its shared memory, allocated piece by piece.
    """

    def __init__(self, connection: socket.socket, hello: Hello, schema: bytes, allocation: Allocation) -> None:
        self.connection, self.hello = connection, hello
        self._schema = schema
        self._allocation: Allocation | None = allocation
        self.region: Region | None = None
        self._ranks = Ranks(hello.world)
        self._ready = False
        """its model is in the shared memory"""
        self._farewell = False
        self.ending = ""
        """why it is no longer served; then only the end-of-file of its socket is still to come"""
        self.dropped = 0
        """messages that it never read"""
        self._queue: deque[tuple[bytes, Sequence[int]]] = deque()
        """packets, and the files that go with each"""

    @property
    def allocating(self) -> bool:
        """Whether `allocate` has more to do."""
        return self._allocation is not None

    @property
    def shared_bytes(self) -> int:
        """Bytes of its shared memory that are there already."""
        if self._allocation is not None:
            return self._allocation.bytes
        return 0 if self.region is None else self.region.bytes

    def filenos(self) -> list[int]:
        return [self.connection.fileno(), *self._ranks.filenos()]

    def gone(self) -> bool:
        """Whether the process has ended or is no longer served."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(self.ending) or bool(poll.poll(0))

    # -- to the process ---------------------------------------------------------------------------------------

    def send(self, message: FromDaemon, files: Sequence[Buffer] = ()) -> None:
        """Queue a message; each of `files` goes with it as a sealed memory file."""
        if self.ending:
            return
        fds: list[int] = []
        try:
            for each in files:
                fds.append(write_sealed([each]))
        except OSError as error:
            _close(fds)
            return self.end(f"the carried state cannot be shared: {error.strerror}")
        self._queue.append((encode(message), fds))
        self._flush()

    def end(self, reason: str) -> None:
        """Stop serving the process."""
        if not self.ending:
            self.ending = reason
            self._drop()
            shut(self.connection)

    def _flush(self) -> None:
        while self._queue and not self.ending:
            try:
                socket.send_fds(self.connection, [self._queue[0][0]], self._queue[0][1])
            except BlockingIOError:
                if len(self._queue) > MAX_QUEUED:
                    self.dropped += len(self._queue)
                    self.end("it does not read its messages")
                return
            except OSError:
                return self._drop()  # the end-of-file will tell
            _close(self._queue.popleft()[1])

    def _drop(self) -> None:
        for _, files in self._queue:
            _close(files)
        self._queue.clear()

    # -- its shared memory ------------------------------------------------------------------------------------

    def allocate(self) -> list[LinkEvent]:
        """Allocate the next piece of the shared memory. Returns Attached once all is there and handed out."""
        allocation = self._allocation
        if allocation is None:
            return []
        try:
            if not allocation.step():
                return []
            self.region = Region(allocation.fd, allocation.size, allocation.token)
            files = [allocation.fd, allocation.token]
            socket.send_fds(self.connection, [encode(RegionReady(allocation.size))], files)
            self._ranks.share(allocation.fd, allocation.size)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                refused = no_memory(allocation.size, error)
                self.send(refused)
                self.end(f"refused: {refused.code}")
            self.end("no shared memory")
            return []
        finally:
            if self.region is not None or self.ending:
                allocation.close()
                self._allocation = None
        return [Attached(self._schema, self.hello.world, self.hello.pid)]

    # -- from the process -------------------------------------------------------------------------------------

    def admit_rank(self, connection: socket.socket, hello: Rank) -> bool:
        """Another rank of the group. Returns False if it has no place."""
        known = not self.ending and self.hello.pid == hello.leader
        return known and self._ranks.admit(connection, hello)

    def has_rank(self, fd: int) -> bool:
        return fd in self._ranks.filenos()

    def read(self) -> list[LinkEvent]:
        """What the process says. Detached is the last event."""
        events: list[LinkEvent] = []
        self._flush()
        for _ in range(READ):
            try:
                packet, fds = receive(self.connection)
            except BlockingIOError:
                break
            except OSError as error:
                packet, fds = b"", []
                self.ending = self.ending or f"its connection broke: {error.strerror}"
            files = self._files(fds)
            if not packet:
                if events:
                    break  # its last messages first, while its region is there; the end-of-file stays to be read
                self.close()
                if self.hello.world > 1 and not (self.ending or self._farewell):
                    events.append(RankLost(0, self.hello.pid))
                left = self._farewell and not self.ending
                events.append(Detached(self.ending or ("it has detached" if left else "it ended"), left=left))
                break
            if self.ending:
                continue
            try:
                events += self._events(decode_from_training(packet), files)
            except RemoteProtocolError as error:
                log.warning("training process %d: %s", self.hello.pid, error)
                self.end(str(error))
        return events

    def _files(self, fds: Sequence[int]) -> list[Buffer]:
        try:
            return [map_sealed(received, MOST_CARRIED) for received in fds]
        except (ValueError, OSError) as error:
            log.warning("training process %d: cannot use a file it sent: %s", self.hello.pid, error)
            return []
        finally:
            _close(fds)

    def read_rank(self, fd: int) -> list[LinkEvent]:
        """What another rank says. A rank that died ends the whole group."""
        try:
            events = self._ranks.read(fd)
        except RemoteProtocolError as error:
            log.warning("a rank of process %d: %s", self.hello.pid, error)
            self.end(str(error))
            return []
        self._ready = self._ready or any(isinstance(event, ModelWritten) for event in events)
        lost = events[-1] if events else None
        if isinstance(lost, RankLost):
            if self.ending:
                return events[:-1]  # if several ranks die, the first has ended the others
            self.end(f"rank {lost.rank} (process {lost.pid}) died")
        return events

    def close(self) -> None:
        if self._allocation is not None:
            self._allocation.close()
            self._allocation = None
        self._ranks.close()
        self._drop()
        self.connection.close()

    def _events(self, message: FromTraining, files: Sequence[Buffer]) -> list[LinkEvent]:
        expected = 0
        if isinstance(message, Ready) and message.carries:
            expected = 2
        elif isinstance(message, Submit) and message.tells:
            expected = 1
        if len(files) != expected:
            raise RemoteProtocolError(f"{type(message).__name__} with {len(files)} files")
        match message:
            case Ready() if self.region is not None and not self._ready:
                events = self._ranks.of_leader(message, Carried(*files))
                self._ready = bool(events)
                return events
            case Submit(session, snapshot, applied, steps, samples, loss, whole, eval_loss=eval_loss) if self._ready:
                state = files[0] if files else None
                submitted = Submitted(session, snapshot, applied, steps, samples, loss, state, eval_loss)
                return self._ranks.whole(("snapshot", session, snapshot), submitted, alone=whole)
            case Applied() if self._ready:
                return self._ranks.of_leader(message)
            case Moments(session, number, steps, applied) if self._ready:
                written = MomentsWritten(session, number, steps, applied)
                return self._ranks.whole(("moments", session, number), written)
            case WantMoments(session) if self._ready:
                return [MomentsWanted(session)]
            case Farewell():
                self._farewell = True
                return []
            case Report(session, loss, stall_seconds, lost_steps, uncounted, eval_loss, unpinned):
                return [Reported(session, loss, stall_seconds, lost_steps, uncounted, eval_loss, unpinned)]
        raise RemoteProtocolError(f"{type(message).__name__} out of turn")


def refusal(code: str, cause: str, seen: str, do: str, mismatch: str = "") -> Refused:
    """A refusal whose fields are cut to the limits of the message."""
    return Refused(code[:16], cause[:400], seen[:4000], do[:400], mismatch)


def no_memory(size: int, error: OSError) -> Refused:
    """Why `size` elements cannot be shared: memory, open files, or something else that the system refuses."""
    seen = f"{8 * size / 2**20:.0f} MiB asked for: {error.strerror}"
    cause = "no memory to share with the training process"
    match error.errno:
        case errno.ENOMEM | errno.ENOSPC:
            return refusal("GD-502", cause, seen, "free memory, or raise its limit")
        case errno.EMFILE | errno.ENFILE:
            return refusal("GD-104", cause, seen, "raise the daemon's limit of open files: `ulimit -n 8192`")
    return refusal("GD-505", cause, seen, "see `gossipdp doctor`, and the limits of the daemon")


def _close(files: Sequence[int]) -> None:
    for each in files:
        os.close(each)
