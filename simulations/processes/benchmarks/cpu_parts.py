"""CPU seconds of a daemon, by the kind of thread that spent them (proc_pid_schedstat in the kernel's documentation)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

__all__ = ["PARTS", "daemon_of", "spent"]

PARTS: Final = ("vectors", "wire", "python")
"""compute threads: check, outer step and codec; libzmq's I/O threads: CURVE, copies, TCP; the I/O thread: messages,
protocol and polling. Other threads, such as storage, do not count"""
_PART_OF: Final = {"compute": "vectors", "ZMQbg": "wire", "main": "python"}


def daemon_of(home: Path) -> int:
    """Process id of the daemon that runs in `home`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "peers.daemon" in command and str(home) in command:
                return int(process.pid)
    raise ProcessLookupError(f"no daemon runs in {home}")


def spent(pid: int) -> Mapping[str, float]:
    """CPU seconds that the daemon's threads have used so far, by `PARTS`."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            used = int((task / "schedstat").read_text().split()[0]) / 1e9
            name = "main" if task.name == str(pid) else (task / "comm").read_text().partition("/")[0].strip()
            if part := _PART_OF.get(name):
                seconds[part] += used
    return seconds
