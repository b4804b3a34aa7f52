"""How much memory this process may use: the machine's, or less in a container (cgroups(7), versions 1 and 2)."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import psutil

__all__ = ["keep_memory", "limit", "usable"]


def usable() -> int:
    """Bytes."""
    machine, container = int(psutil.virtual_memory().total), limit()
    return machine if container is None else min(machine, container)


def limit(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The least limit in bytes of this process's control group and those above it; None: there is none.

    A container may be shown its group's path on the host, but as its own root what the group may use.
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
    """Have malloc keep what chunks and their temporaries used: to map and fault it in anew each time costs more
    than the work on it. glibc only; elsewhere nothing changes."""
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
