"""Memory of this process: how much it may use (cgroups(7), versions 1 and 2), and how malloc keeps it."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import psutil

__all__ = ["keep_memory", "limit", "usable"]


def usable() -> int:
    """Bytes that this process may use: the machine's memory, or the limit of its container."""
    machine, container = int(psutil.virtual_memory().total), limit()
    return machine if container is None else min(machine, container)


def limit(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The smallest limit, in bytes, of this process's control group and the groups above it. None without a limit.

    A container may see the host's path of its group while its root is the group itself. So every level is tried.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError):
        for line in cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folder, name = root, "memory.max"
            elif "memory" in controllers.split(","):
                folder, name = root / "memory", "memory.limit_in_bytes"
            else:
                continue
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                with contextlib.suppress(OSError, ValueError):  # not there, or "max"
                    limits.append(int(folder.joinpath(*parts[:depth], name).read_text()))
    return min(limits, default=None)


def keep_memory() -> None:
    """Let glibc's malloc keep the memory of chunks and temporaries. Mapping it anew costs more than the work on it."""
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
