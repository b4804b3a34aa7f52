"""HOME/supervisor.json: which processes the supervisor of a home runs, so that others can end them once it is killed.

The supervisor holds a lock on the file while it lives, so that a home has one supervisor. A process is named by its
number and its start, because numbers are used again. What another boot of the machine or another user wrote, or the
original of a copied home, names no process. Nothing here may send a signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from gossipdp.runtime import plain_json
from peers.processes import ticks

__all__ = ["DAEMON", "GUARD", "SUPERVISOR", "TRAINING", "Named", "Recorded", "SupervisorFile", "read"]

log = logging.getLogger("gossipdp.supervisor")

NAME: Final = "supervisor.json"
SIZE: Final = 1024
"""bytes that each write has: a reader finds the old text or the new, and no rest of a longer one"""
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
SUPERVISOR, GUARD, DAEMON, TRAINING = "supervisor", "guard", "peer daemon", "training command"


class Named(msgspec.Struct, frozen=True):
    """A process."""

    pid: int
    since: int
    """its start, in clock ticks since the boot"""

    @property
    def lives(self) -> bool:
        return self.since > 0 and ticks(self.pid) == self.since


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    boot: str
    place: tuple[int, int]
    """device and inode of the file itself: a copy has others"""
    mark: str
    """what the marks of all descendants begin with"""
    processes: dict[str, Named] = {}
    """by part: `SUPERVISOR`, `GUARD`, `DAEMON`, `TRAINING`"""

    def living(self, part: str) -> int:
        """The pid of this part; 0 if it does not run."""
        named = self.processes.get(part)
        return named.pid if named is not None and named.pid > 1 and named.lives else 0

    def mark_of(self, part: str) -> str:
        """The mark of this part and its descendants."""
        return f"{self.mark}-{part.partition(' ')[0]}"


class SupervisorFile:
    """The file, as its supervisor writes it. It may hold what an earlier supervisor wrote, until `begin`.

    Raises:
        BlockingIOError: another supervisor runs for this home.
        OSError: the file cannot be made.
    """

    def __init__(self, home: Path) -> None:
        self.descriptor = os.open(home / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.descriptor)
            raise
        self._told = False

    def begin(self, mark: str) -> Recorded:
        """Forget what the file held. From now on it names this process."""
        self._recorded = Recorded(boot=_boot(), place=_place(self.descriptor), mark=mark)
        self.name(SUPERVISOR, os.getpid())
        return self._recorded

    def name(self, part: str, pid: int) -> None:
        """`part` is process `pid` from now on."""
        self._recorded.processes[part] = Named(pid, ticks(pid))
        try:
            os.pwrite(self.descriptor, msgspec.json.encode(self._recorded).ljust(SIZE), 0)
        except OSError as error:  # a full disk must end nothing
            if not self._told:
                log.warning(
                    "%s cannot be written (%s): if this process is killed, its children may live on", NAME, error
                )
            self._told = True

    def let_go(self) -> None:
        """Call this in a fork of the supervisor: the lock must not outlive the supervisor."""
        os.close(self.descriptor)

    def close(self) -> None:
        """All children are gone."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


def read(home: Path) -> Recorded | None:
    """What the last supervisor of `home` wrote; None if nothing of it can live."""
    try:
        with open(home / NAME, "rb") as file:
            recorded = plain_json.decode(file.read(SIZE), Recorded)
            here = (_boot(), _place(file.fileno())) == (recorded.boot, recorded.place)
            here = here and os.fstat(file.fileno()).st_uid == os.geteuid()
    except (OSError, ValueError):
        return None
    return recorded if here and recorded.mark else None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return BOOT.read_text().strip()
    return ""


def _place(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
