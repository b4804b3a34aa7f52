"""Cores that this process may use, and how many threads of a kind the daemon has on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gossipdp.runtime.control_groups import CGROUP, ROOT, levels

__all__ = ["threads_for", "usable_cores"]


def usable_cores(cgroup: Path = CGROUP, root: Path = ROOT) -> float:
    """The cores that this process may run on, or the least quota of its control groups, if that is less."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(cgroup, root)])


def threads_for(cores: float) -> int:
    """Compute threads, and I/O threads of libzmq, of a daemon on a host with this many usable cores.

    Training comes first. A loop on a CPU, or the loaders of one GPU, keep a few cores busy. With fewer than 8 cores a
    second thread would take time from them. One compute thread encodes and mixes some 0.4 billion parameters a second,
    and 10 Gbit/s each way carry 2.4 billion at 4 bits. `Sockets` says what an I/O thread carries.
    """
    return 1 if cores < 8 else 2 if cores < 16 else 4


def _quotas(cgroup: Path, root: Path) -> Iterator[float]:
    """CPU seconds a second that each control group may use. Groups without a limit give none."""
    for folder, unified in levels("cpu", cgroup, root):
        with contextlib.suppress(OSError, ValueError):
            if unified:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{each}_us").read_text()) for each in ("quota", "period"))
            if quota > 0 and period > 0:
                yield quota / period
