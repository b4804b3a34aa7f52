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
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from gossipdp.runtime.all_processes import each_process

__all__ = ["LOOK", "MARK", "Ending", "Guard", "adopt", "bury", "family", "orphans", "ticks", "tie"]

log = logging.getLogger("gossipdp.supervisor")

MARK = "GOSSIPDP_CHILD"
"""the variable that marks the descendants of a command"""
LOOK = 0.1
"""seconds between two looks at what no signal announces"""
ASK = 1.0
"""seconds between two calls of `busy`"""
UNDYING = 10.0
"""seconds from SIGKILL until the rest is given up: a process that waits for a driver cannot end"""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LIBRARY = ctypes.CDLL(None)
"""loaded here: a child may not load it between fork and exec"""


def adopt() -> bool:
    """Make orphans among this process's descendants its children. Linux only.

    Returns:
        Whether every orphan will descend from a child that is started from now on. False in the first process of a
        container, which adopts all orphans, and in a process that already has children.
    """
    with contextlib.suppress(OSError, AttributeError):
        _LIBRARY.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        return os.getpid() != 1 and not psutil.Process().children()
    except psutil.Error:  # without /proc no orphan can be found
        return False


def tie(parent: int) -> None:
    """Call this in a new child, before it becomes its command: the kernel sends it SIGTERM if `parent` dies.

    The kernel tells this process alone. The `Guard` ends its descendants.
    """
    with contextlib.suppress(AttributeError):
        _LIBRARY.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it has died in between
        os._exit(128 + signal.SIGTERM)


def ticks(pid: int) -> int:
    """The start of a process in clock ticks since the boot; 0 if it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in (b"Z", b"X") else int(words[19])


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
    for process in each_process():
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
        told: pids to which the kernel has sent SIGTERM (`tie`): a second one might break off an orderly end.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], list[psutil.Process]],
        now: float,
        grace: float,
        busy: Callable[[], bool] | None = None,
        told: Collection[int] = (),
    ) -> None:
        self._name, self._find, self._grace, self._busy = name, find, grace, busy
        self._told_by_kernel = told
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
            left = [process for process in found if self._tell(process, found)]
        else:
            if found and not self._killed:
                log.warning("killing %s, which has not ended in time", self._name)
            self._given_up_at = min(self._given_up_at, now + UNDYING)
            self._killed, self._busy, self._ask_at = True, None, math.inf
            left = [process for process in found if _kill(process)]
        before, self._left = self._left, bool(left)
        return before or self._left

    def _tell(self, process: psutil.Process, family: Collection[psutil.Process]) -> bool:
        """Send SIGTERM once. Return False if the process is gone, or belongs to another user."""
        try:
            if process not in self._told and process.ppid() not in {each.pid for each in family}:
                self._told.add(process)
                if process.pid in self._told_by_kernel:
                    self._tell_group(process, family)
                elif os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGTERM)
                else:
                    process.terminate()
        except (psutil.Error, OSError):
            return False
        return True

    @staticmethod
    def _tell_group(leader: psutil.Process, family: Collection[psutil.Process]) -> None:
        """Send SIGTERM to the members of a group, except its leader."""
        for process in family:
            with contextlib.suppress(psutil.Error, OSError):
                if process != leader and os.getpgid(process.pid) == leader.pid:
                    process.terminate()


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except (psutil.Error, OSError):
        return False
    return True


class Guard:
    """A process that waits until the supervisor is gone, and then calls `end`.

    It waits for the end of a pipe that only the supervisor holds open.

    Args:
        end: ends what is left, and returns then.
        let_go: called in the guard at its start.
    """

    def __init__(self, end: Callable[[], None], let_go: Callable[[], None]) -> None:
        self._end, self._let_go = end, let_go
        self._read, self._write = os.pipe()
        self.pid = 0
        self.start()

    def start(self) -> bool:
        """Start the guard, unless it runs. Return whether it was started."""
        if self.pid:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    return False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._wait()
            finally:
                os._exit(0)
        return True

    def _wait(self) -> None:
        os.close(self._write)
        self._let_go()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        os.read(self._read, 1)
        self._end()

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
