"""Finds all that a command has started, and ends it: a launcher such as torchrun gives each rank a session of its own.

A supervisor marks its children by a variable, which whatever they start inherits. It also adopts orphans, so that one
that has wiped its environment (setproctitle does) is not lost with its parent. Nothing here may know what a peer is.
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
"""the variable that says whose a process is"""
LOOK = 0.1
"""seconds between looks at what no signal announces"""
ASK = 1.0
"""seconds between questions whether somebody is busy"""
UNDYING = 10.0
"""seconds after SIGKILL at which what is still there is given up: a process that waits for a driver cannot end"""
PR_SET_CHILD_SUBREAPER = 36


def adopt() -> bool:
    """Have orphans among this process's descendants become its children; Linux only.

    Returns:
        Whether every orphan will be of something that is started from now on. The first process of a container gets
        all that there are, and a script's own children stay when it becomes another program.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return os.getpid() != 1 and not psutil.Process().children()


def orphans(known: Collection[int]) -> set[int]:
    """Children of this process that are not `known` and have no mark."""
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process().children() if child.pid not in known and not _mark(child)}
    return set()


def bury(children: Collection[subprocess.Popen[bytes]]) -> None:
    """Let no orphan that has ended stay a zombie; the ends of `children` are kept for whoever polls them."""
    own = {child.pid: child for child in children}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                own[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, 0)


def family(mark: str, leaders: Collection[int] = ()) -> list[psutil.Process]:
    """The living processes that were started with a mark that begins so, the `leaders`, and all their descendants.

    Raises:
        ValueError: no command leads everything that runs.
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
    """The end of a family: SIGTERM to whoever has no parent in it, group and all; SIGKILL to everybody in the end.

    So a launcher has time to end its ranks as it likes; those it leaves behind are told themselves.

    Args:
        find: the family as it is now.
        grace: seconds from SIGTERM to SIGKILL.
        busy: puts SIGKILL off while it is true; asked once a second.
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
        """When `look` has something to do, though nobody has ended."""
        return min(self._kill_at, self._ask_at)

    def hurry(self) -> None:
        """SIGKILL at the next look, busy or not."""
        self._busy, self._kill_at = None, -math.inf

    def look(self, now: float) -> bool:
        """Do what is due; whether anybody may be left who can be ended.

        Only two looks tell that nobody is: a process that becomes another program has no mark for an instant.
        """
        if self._busy is not None and now >= self.due:
            self._ask_at = now + ASK
            if self._busy():
                self._kill_at = max(self._kill_at, now + self._grace)
        found = self._find()
        if now >= self._given_up_at:
            if found:
                numbers = ", ".join(str(process.pid) for process in found)
                log.error("%s cannot be killed, and is left: processes %s", self._name, numbers)
            return False
        if now < self._kill_at:
            pids = {process.pid for process in found}
            left = [process for process in found if self._tell(process, pids)]
        else:
            if found and not self._killed:
                log.warning("%s has not ended in time and is killed", self._name)
            self._given_up_at = min(self._given_up_at, now + UNDYING)
            self._killed, self._busy, self._ask_at = True, None, math.inf
            left = [process for process in found if _kill(process)]
        before, self._left = self._left, bool(left)
        return before or self._left

    def _tell(self, process: psutil.Process, family: Collection[int]) -> bool:
        """SIGTERM, once; False: it is gone, or another user's."""
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
    """A process that does nothing until the supervisor is gone, and then ends all that carries its `mark`.

    It waits for the end of a pipe that only the supervisor holds open. A child names itself there before it becomes
    its command, so there is no instant at which it runs unwatched. (A parent-death signal would reach the child alone:
    the ranks of a killed launcher would live on.)
    """

    def __init__(self, mark: str, grace: float, busy: Callable[[], bool] | None = None) -> None:
        # Kept open here too: writing must not fail, nor a child die of SIGPIPE, should the guard itself be killed.
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

                ending = Ending("what ran here", found, time.monotonic(), grace, busy)
                while ending.look(time.monotonic()):
                    time.sleep(LOOK)
            finally:
                os._exit(0)

    def watch(self) -> None:
        """To be called in a new child, before it becomes its command."""
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
    """Those who run, once the pipe has come to its end."""
    leaders: set[int] = set()
    with open(pipe, "rb") as lines:
        for line in lines:
            number = int(line[1:])
            leaders.add(number) if line[:1] == b"+" else leaders.discard(number)
    return leaders
