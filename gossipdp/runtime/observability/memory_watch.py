"""Compares the daemon's own memory with the sum of its bounds, and warns the operator if it holds more.

Nothing is freed here. libzmq has no limit for a message of endless parts, and only the end of the process frees such a
message. Memory shared with training processes is not counted.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gossipdp.runtime.files import read_bounded

__all__ = ["FIXED", "PER_PARAMETER", "MemoryWatch", "own"]

FIXED: Final = 1 << 30
"""bytes of the interpreter, compiled kernels and open chunks (220 MB with wan), and what malloc keeps of them"""
PER_PARAMETER: Final = 32
"""bytes: anchor and momentum, and joiners, a re-sync and moments at the same time, with some to spare"""
CALM: Final = 0.8
"""share of the bounds; after less memory than this, the next excess is a new one"""


def own() -> int:
    """Bytes of this process in memory that no other process shares; 0 if the system does not tell."""
    try:
        _, resident, shared, *_ = read_bounded(Path("/proc/self/statm"), 4096).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


class MemoryWatch:
    """Compares the memory of this process with its bounds.

    Args:
        waiting: bytes that messages may take, those to send and those received.
        held: returns the bytes that this process holds now.
    """

    def __init__(self, waiting: int, held: Callable[[], int] = own) -> None:
        self._waiting, self._held = waiting, held
        self._told = 1
        """multiple of the bounds that is told next"""

    def look(self, parameters: int) -> str:
        """Text of a notice (GD-506), or "".

        A notice comes past the bounds, and again at each doubling. After less than CALM of the bounds it starts anew.

        Args:
            parameters: of the model.
        """
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
