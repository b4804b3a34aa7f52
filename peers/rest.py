"""What a killed supervisor has left running, and its end.

If the supervisor is killed, the guard ends the rest; if the guard is killed too, the daemon does it. What is left when
all three are killed ends at the next `up`, `join` or `leave` of that home. While the guard lives, these wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from gossipdp.runtime.all_processes import each_process
from peers.child import Policy
from peers.processes import LOOK, Ending, family
from peers.supervisor_file import DAEMON, GUARD, SUPERVISOR, TRAINING, Recorded, read

__all__ = ["Absence", "absence", "end_if_killed", "end_left", "end_unguarded", "leave", "left", "supervisor"]

log = logging.getLogger("gossipdp.supervisor")

PARTS: Final = (TRAINING, DAEMON)
Busy = Callable[[], bool] | None


def supervisor(home: Path) -> int:
    """The pid of the supervisor of `home`; 0 if none runs."""
    recorded = read(home)
    return 0 if recorded is None else recorded.living(SUPERVISOR)


def left(home: Path) -> str:
    """The processes that a killed supervisor of `home` has left, as text; "" if there is none."""
    recorded = read(home)
    return "" if recorded is None or recorded.living(SUPERVISOR) else _spelled(recorded, PARTS)


def _end(recorded: Recorded, parts: Sequence[str], grace: float, busy: Busy = None, *, at_once: bool = False) -> None:
    """End these parts and all their descendants, as a supervisor does: SIGTERM, and SIGKILL after `grace` seconds.

    Args:
        busy: puts off SIGKILL of the daemon while it is true.
        at_once: the supervisor has died just now, so the process groups of its children are still theirs.
    """
    now = time.monotonic()
    endings = []
    for part in parts:
        leader = recorded.processes.get(part)
        group = _group(leader.pid) if leader is not None and at_once else []
        name, find = f"the {part} of a killed supervisor", partial(_family, recorded, part, group)
        told = () if leader is None else {leader.pid}
        endings.append(Ending(name, find, now, grace, busy if part == DAEMON else None, told))
    while endings:
        endings = [ending for ending in endings if ending.look(time.monotonic())]
        time.sleep(LOOK)


def end_if_killed(home: Path, recorded: Recorded, grace: float, busy: Busy) -> None:
    """For the guard: the supervisor is gone. End what it has left.

    Args:
        recorded: what to go by if the file is gone.
    """
    found = read(home)
    recorded = found if found is not None and found.mark == recorded.mark else recorded
    if text := _spelled(recorded, PARTS):
        log.warning("the supervisor was killed; ending what it started: %s", text)
    _end(recorded, PARTS, grace, busy, at_once=True)


def end_unguarded(home: Path, parent: int) -> None:
    """For a daemon that has left: end the training command if neither its supervisor `parent` nor the guard lives."""
    if parent == os.getppid() or (recorded := read(home)) is None:
        return
    if recorded.living(DAEMON) == os.getpid() and not recorded.living(GUARD):
        if text := _spelled(recorded, [TRAINING]):
            log.warning("supervisor and guard were killed; ending %s", text)
        _end(recorded, [TRAINING], Policy.grace)


def end_left(home: Path, grace: float, busy: Busy, say: Callable[[str], object]) -> bool:
    """End what a killed supervisor of `home` has left. Return whether there was anything."""
    recorded = read(home)
    if recorded is None or not (text := _spelled(recorded, PARTS)):
        return False
    from peers.waits import told  # its package needs numpy, and `absence` must not

    say(f"the last supervisor of this home was killed; ending what it has left: {text}")
    with told(f"{text} to end", say):
        while recorded.living(GUARD):
            time.sleep(LOOK)
        _end(recorded, PARTS, grace, busy)
    return True


def leave(home: Path, busy: Busy, say: Callable[[str], object]) -> bool:
    """End a peer whose daemon does not answer. Return whether there was anything to end."""
    if pid := supervisor(home):
        os.kill(pid, signal.SIGTERM)
        return True
    return end_left(home, Policy.grace, busy, say)


class Absence(NamedTuple):
    """Why no daemon answers, and what to do."""

    seen: str
    do: str


def absence(home: Path) -> Absence | None:
    """What is known of a peer whose daemon does not run. None if nothing of it runs."""
    if pid := supervisor(home):
        seen = f"its supervisor (process {pid}) starts it"
        return Absence(seen, "try again in some seconds; the first start of a version takes up to a minute")
    if (recorded := read(home)) is None or not (text := _spelled(recorded, PARTS)):
        return None
    if recorded.living(GUARD) or recorded.living(DAEMON):
        return Absence(
            f"its supervisor was killed, and what it started is being ended: {text}",
            "`gossipdp up` waits for that and starts it again",
        )
    return Absence(
        f"its supervisor was killed, and what it started still runs: {text}",
        "`gossipdp leave` ends that; `gossipdp up` ends it and starts this peer again",
    )


def _family(recorded: Recorded, part: str, group: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """The living processes of a part, those of `group`, and all their descendants."""
    leaders = {recorded.living(part)} - {0} | {process.pid for process in group if process.is_running()}
    return family(recorded.mark_of(part), leaders)


def _group(leader: int) -> list[psutil.Process]:
    """The members of the process group of `leader`, which may be dead."""
    found = []
    for process in each_process():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == leader:
                found.append(process)
    return found


def _spelled(recorded: Recorded, parts: Sequence[str]) -> str:
    """The parts that live, with their pids; "" if none does."""
    found = {part: [process.pid for process in _family(recorded, part)] for part in parts}
    return " and ".join(f"{part} ({_numbers(pids)})" for part, pids in found.items() if pids)


def _numbers(pids: list[int]) -> str:
    shown = ", ".join(str(pid) for pid in sorted(pids)[:4])
    return f"process{'es' if len(pids) > 1 else ''} {shown}{', ...' if len(pids) > 4 else ''}"
