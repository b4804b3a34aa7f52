"""Finds and ends all descendants of a command, also those in sessions of their own, as the ranks of torchrun.

The supervisor marks its children by a variable that their descendants inherit. It also adopts orphans, because some
processes wipe their environment (setproctitle does). Nothing here may know what a peer is.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import psutil

__all__ = ["LOOK", "MARK", "Ending", "Guard", "adopt", "bury", "family", "orphans"]

log = logging.getLogger("gossipdp.supervisor")

MARK = "GOSSIPDP_CHILD"
"""the variable that marks the descendants of a command"""
LOOK = 0.1
"""seconds between two looks at what no signal announces"""
ASK = 1.0
"""seconds between two calls of `busy`"""
UNDYING = 10.0
"""seconds from SIGKILL until the rest is given up: a process that waits for a driver cannot end"""
PR_SET_CHILD_SUBREAPER = 36


def adopt() -> bool:
    """Make orphans among this process's descendants its children. Linux only.

    Returns:
        Whether every orphan will descend from a child that is started from now on. False in the first process of a
        container, which adopts all orphans, and in a process that already has children.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return os.getpid() != 1 and not psutil.Process().children()


def orphans(known: Collection[int]) -> set[int]:
    """Pids of this process's children that are not `known` and have no mark."""
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process().children() if child.pid not in known and not _mark(child)}
    return set()


def bury(children: Collection[subprocess.Popen[bytes]]) -> None:
    """Reap ended orphans. The exit codes of `children` stay available to `poll`."""
    own = {child.pid: child for child in children}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                own[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, 0)


def family(mark: str, leaders: Collection[int] = ()) -> list[psutil.Process]:
    """The living processes whose mark begins with `mark`, the `leaders`, and all their descendants.

    Args:
        mark: not empty.
        leaders: pids above 1.

    Raises:
        ValueError: the arguments would match every process.
    """
    if not mark or min(leaders, default=2) < 2:
        raise ValueError(f"mark {mark!r}, leaders {leaders!r}")
    living: dict[int, psutil.Process] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    found = set(leaders)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            children[process.ppid()].append(process.pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living[process.pid] = process
            if _mark(process).startswith(mark):
                found.add(process.pid)
    waiting = list(found)
    while waiting:
        for child in children[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return [living[pid] for pid in found if pid in living]


def _mark(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.environ().get(MARK, ""))
    return ""


class Ending:
    """Ends a family: SIGTERM to each process without a parent in it, and to its group; later SIGKILL to all.

    A launcher thus has time to end its ranks. Ranks that it leaves behind get SIGTERM themselves.

    Args:
        name: for the log.
        find: returns the family as it is now.
        now: time of SIGTERM.
        grace: seconds from SIGTERM to SIGKILL.
        busy: puts off SIGKILL while it is true; called once a second.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], list[psutil.Process]],
        now: float,
        grace: float,
        busy: Callable[[], bool] | None = None,
    ) -> None:
        self._name, self._find, self._grace, self._busy = name, find, grace, busy
        self._told: set[psutil.Process] = set()
        self._killed, self._left = False, True
        self._given_up_at = math.inf
        self._kill_at = now + grace
        self._ask_at = math.inf if busy is None else now + ASK

    @property
    def due(self) -> float:
        """Time at which `look` has something to do even if no process ends."""
        return min(self._kill_at, self._ask_at)

    def hurry(self) -> None:
        """Send SIGKILL at the next look, also to a busy family."""
        self._busy, self._kill_at = None, -math.inf

    def look(self, now: float) -> bool:
        """Send the signals that are due. Return whether a process may be left that can be ended.

        Two looks must find none: a process that becomes another program has no mark for an instant.
        """
        if self._busy is not None and now >= self.due:
            self._ask_at = now + ASK
            if self._busy():
                self._kill_at = max(self._kill_at, now + self._grace)
        found = self._find()
        if now >= self._given_up_at:
            if found:
                numbers = ", ".join(str(process.pid) for process in found)
                log.error("%s cannot be killed; processes left: %s", self._name, numbers)
            return False
        if now < self._kill_at:
            pids = {process.pid for process in found}
            left = [process for process in found if self._tell(process, pids)]
        else:
            if found and not self._killed:
                log.warning("killing %s, which has not ended in time", self._name)
            self._given_up_at = min(self._given_up_at, now + UNDYING)
            self._killed, self._busy, self._ask_at = True, None, math.inf
            left = [process for process in found if _kill(process)]
        before, self._left = self._left, bool(left)
        return before or self._left

    def _tell(self, process: psutil.Process, family: Collection[int]) -> bool:
        """Send SIGTERM once. Return False if the process is gone, or belongs to another user."""
        try:
            if process not in self._told and process.ppid() not in family:
                self._told.add(process)
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGTERM)
                else:
                    process.terminate()
        except (psutil.Error, OSError):
            return False
        return True


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except (psutil.Error, OSError):
        return False
    return True


class Guard:
    """A process that waits until the supervisor is gone, and then ends every process with its `mark`.

    It waits for the end of a pipe that only the supervisor holds open. A child writes its pid there before it becomes
    its command, so it never runs unwatched. A parent-death signal would not do: it reaches only the child, and the
    ranks of a killed launcher would live on.
    """

    def __init__(self, mark: str, grace: float, busy: Callable[[], bool] | None = None) -> None:
        # The read end stays open here too. Else a killed guard would make writes fail and SIGPIPE end children.
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write)
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                pids = _leaders(self._read)
                leaders = [each for each in psutil.process_iter() if each.pid in pids]

                def found() -> list[psutil.Process]:
                    return family(mark, {each.pid for each in leaders if each.is_running()})

                ending = Ending("the rest of a killed supervisor", found, time.monotonic(), grace, busy)
                while ending.look(time.monotonic()):
                    time.sleep(LOOK)
            finally:
                os._exit(0)

    def watch(self) -> None:
        """Call this in a new child, before it becomes its command."""
        self._tell(b"+%d\n" % os.getpid())

    def forget(self, leader: int) -> None:
        self._tell(b"-%d\n" % leader)

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, line)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _leaders(pipe: int) -> set[int]:
    """Pids of the children that run when the pipe ends."""
    leaders: set[int] = set()
    with open(pipe, "rb") as lines:
        for line in lines:
            number = int(line[1:])
            leaders.add(number) if line[:1] == b"+" else leaders.discard(number)
    return leaders
