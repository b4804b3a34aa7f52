"""Watches what the daemon itself holds in memory against what its bounds add up to, for its operator to hear of more.

Nothing is freed here: libzmq has no limit for a message of endless parts, and only ending the process gives such a one
back. What training processes map too is not counted.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gossipdp.runtime.files import read_bounded

__all__ = ["FIXED", "PER_PARAMETER", "MemoryWatch", "own"]

FIXED: Final = 1 << 30
"""bytes of interpreter, compiled kernels, open chunks (220 MB with wan) and what malloc keeps of them"""
PER_PARAMETER: Final = 32
"""bytes: anchor and momentum, and what joiners, a re-sync and moments take at the same time, with some to spare"""
CALM: Final = 0.8
"""of the bounds: less than that, and the next time past them is told as a new one"""


def own() -> int:
    """Bytes of this process in memory that are shared with no other; 0 if the system does not say."""
    try:
        _, resident, shared, *_ = read_bounded(Path("/proc/self/statm"), 4096).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


class MemoryWatch:
    """Args:

    waiting: bytes that messages may take, to be sent or to be passed on.
    held: bytes that this process holds now.
    """

    def __init__(self, waiting: int, held: Callable[[], int] = own) -> None:
        self._waiting, self._held = waiting, held
        self._told = 1
        """times the bounds that are told next"""

    def look(self, parameters: int) -> str:
        """What to tell (GD-506), or "": once past the bounds, again each time it is twice as much, and anew after
        less than CALM of them."""
        bound = FIXED + PER_PARAMETER * parameters + self._waiting
        held = self._held()
        if held < CALM * bound:
            self._told = 1
        if held <= bound * self._told:
            return ""
        while held > bound * self._told:
            self._told *= 2
        return (
            f"this daemon holds {held / 1e9:.1f} GB of memory, and its bounds add up to {bound / 1e9:.1f} GB: a member"
            " may be sending it one message without an end"
        )
