"""The processes of this host. Without a readable /proc, as under some sandboxes, there are none to see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

__all__ = ["each_process"]


def each_process() -> Iterator[psutil.Process]:
    """The processes that this user sees."""
    with contextlib.suppress(OSError):
        yield from psutil.process_iter()
