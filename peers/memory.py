"""Memory of this process: how much it may use, and how malloc keeps it."""

from __future__ import annotations

import contextlib
import ctypes
import os

from gossipdp.runtime.free_memory import limit

__all__ = ["keep_memory", "usable"]


def usable() -> int:
    """Bytes that this process may use: the machine's memory, or the limit of its container."""
    machine, container = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), limit()
    return machine if container is None else min(machine, container)


def keep_memory() -> None:
    """Let glibc's malloc keep the memory of chunks and temporaries. Mapping it anew costs more than the work on it."""
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
