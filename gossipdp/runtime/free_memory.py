"""Memory that this process can still get: the machine's, its control groups' (cgroups(7), versions 1 and 2), its own.

Page cache and swap count as free, because the kernel gives them up. What cannot be read bounds nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil

from gossipdp.runtime.all_processes import each_process
from gossipdp.runtime.control_groups import CGROUP, ROOT, levels
from gossipdp.runtime.files import read_bounded

__all__ = ["Free", "free_memory", "holders", "limit", "own"]

TOLD: Final = 50 * 10**6
"""bytes of another process that are worth a word"""
_LARGEST: Final = 1 << 20
"""bytes of a file of the kernel, at most"""


class Free(NamedTuple):
    """Bytes that can still be taken, out of how many, and what bounds them.

    others: it is shared with other processes, of this machine or of this control group.
    """

    bytes: int
    of: int
    what: str
    others: Literal["machine", "group", "none"] = "machine"


def own() -> int:
    """Bytes of this process in memory that no other process shares; 0 if the system does not tell."""
    try:
        _, resident, shared, *_ = read_bounded(Path("/proc/self/statm"), 4096).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def free_memory(cgroup: Path = CGROUP, root: Path = ROOT) -> Free | None:
    """The least that the machine, a control group or a limit of this process leaves. None if nothing tells."""
    return min([*_machine(), *_groups(cgroup, root), *_address_space()], default=None)


def limit(cgroup: Path = CGROUP, root: Path = ROOT) -> int | None:
    """The smallest limit, in bytes, of this process's control group and the groups above it. None without a limit."""
    limits = (
        _number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        for folder, unified in levels("memory", cgroup, root)
    )
    return min((each for each in limits if each is not None), default=None)


def holders(free: Free, most: int = 2) -> Sequence[tuple[int, str, int]]:
    """The processes with the most memory beside this one: process id, name, and bytes that no other process shares."""
    found, ours = [], _group_of(os.getpid())
    for process in each_process() if free.others != "none" else ():
        with contextlib.suppress(psutil.Error, OSError):
            memory = process.memory_info()
            if process.pid != os.getpid() and (free.others == "machine" or _group_of(process.pid) == ours):
                found.append((process.pid, process.name(), memory.rss - memory.shared))
    return sorted((each for each in found if each[2] >= TOLD), key=lambda each: -each[2])[:most]


def _group_of(pid: int) -> bytes:
    return read_bounded(Path(f"/proc/{pid}/cgroup"), _LARGEST)


def _machine() -> Iterator[Free]:
    with contextlib.suppress(OSError, RuntimeError):
        memory = psutil.virtual_memory()
        yield Free(int(memory.available) + _free_swap(), int(memory.total), "this machine")


def _free_swap() -> int:
    with contextlib.suppress(OSError, RuntimeError):
        return int(psutil.swap_memory().free)
    return 0


def _groups(cgroup: Path, root: Path) -> Iterator[Free]:
    for folder, unified in levels("memory", cgroup, root):
        found = _unified(folder) if unified else _version_1(folder)
        if found is not None:
            yield found


def _unified(folder: Path) -> Free | None:
    """What is free under memory.max, and under memory.high, past which the kernel slows the group down."""
    limits = [each for name in ("memory.max", "memory.high") if (each := _number(folder / name)) is not None]
    used = _number(folder / "memory.current")
    if not limits or used is None:
        return None
    swap, allowed = _free_swap(), _number(folder / "memory.swap.max")
    if allowed is not None:
        swap = min(swap, max(0, allowed - (_number(folder / "memory.swap.current") or 0)))
    cached = _stat(folder, "inactive_file", "active_file", "slab_reclaimable")
    return Free(min(limits) - used + cached + swap, min(limits), f"the control group {folder}", "group")


def _version_1(folder: Path) -> Free | None:
    most, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
    if most is None or used is None:
        return None
    cached = _stat(folder, "total_inactive_file", "total_active_file")
    return Free(most - used + cached + _free_swap(), most, f"the control group {folder}", "group")


def _address_space() -> Iterator[Free]:
    """What RLIMIT_AS leaves. Memory that is mapped and was never written is counted as free, as elsewhere."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.partition(b":") for line in read_bounded(Path("/proc/self/status"), _LARGEST).splitlines())
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in lines if rest.endswith(b" kB")}
        unwritten = max(0, kilobytes[b"VmData"] - kilobytes[b"RssAnon"])
        yield Free(
            most - 1024 * (kilobytes[b"VmSize"] - unwritten), most, "the limit of this process (RLIMIT_AS)", "none"
        )


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no file, or it says "max"."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _stat(folder: Path, *names: str) -> int:
    """The sum of these lines of the group's memory.stat; what is missing counts as 0."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, number = line.partition(" ")
            total += int(number) if name in names else 0
    return total
