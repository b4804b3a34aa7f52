"""A limit on the memory of a process, by a control group of its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["MemoryLimit"]

ROOT = Path("/sys/fs/cgroup")


class MemoryLimit:
    """Needs root, and the memory controller of version 1 or 2. Memory that the process has already is not counted.

    Args:
        most: bytes.
        pid: of the process. What it starts later belongs to the group too.
    """

    def __init__(self, most: int, pid: int) -> None:
        unified = not (ROOT / "memory").is_dir()
        self._group = (ROOT if unified else ROOT / "memory") / f"gossipdp-{os.getpid()}-{pid}"
        self._group.mkdir()
        (self._group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(most))
        (self._group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the group once its processes are gone."""
        with contextlib.suppress(OSError):
            self._group.rmdir()
