"""The control groups that this process is in (cgroups(7), versions 1 and 2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["CGROUP", "ROOT", "levels"]

CGROUP: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")


def levels(controller: str, cgroup: Path = CGROUP, root: Path = ROOT) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's group and of the groups above it, each with whether it is of version 2.

    A container may see the host's path of its group while its root is the group itself. So every level is tried.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / controller if controllers else root
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                yield top.joinpath(*parts[:depth]), not controllers
