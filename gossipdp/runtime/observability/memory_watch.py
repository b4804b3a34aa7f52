"""Compares the daemon's own memory with the sum of its bounds, and warns the operator if it holds more.

Nothing is freed here. libzmq has no limit for a message of endless parts, and only the end of the process frees such a
message. Memory shared with training processes is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gossipdp.runtime.free_memory import own
from gossipdp.runtime.memory_need import MemoryPlan

__all__ = ["KEPT", "SPARE", "MemoryWatch"]

SPARE: Final = 1.8
"""times the need: what a joiner, a re-sync and moments take at the same time, with some to spare"""
KEPT: Final = 1 << 29
"""bytes that malloc keeps of open chunks and temporaries"""
CALM: Final = 0.8
"""share of the bounds; after less memory than this, the next excess is a new one"""


class MemoryWatch:
    """Compares the memory of this process with its bounds.

    Args:
        plan: the settings.
        waiting: bytes that messages may take, those to send and those received.
        held: returns the bytes that this process holds now.
    """

    def __init__(self, plan: MemoryPlan, waiting: int, held: Callable[[], int] = own) -> None:
        self._plan, self._waiting, self._held = plan, waiting, held
        self._told = 1
        """multiple of the bounds that is told next"""

    def look(self, parameters: int) -> str:
        """Text of a notice (GD-506), or "".

        A notice comes past the bounds, and again at each doubling. After less than CALM of the bounds it starts anew.

        Args:
            parameters: of the model.
        """
        bound = KEPT + SPARE * self._plan.need(parameters, disk=0.0).private + self._waiting
        held = self._held()
        if held < CALM * bound:
            self._told = 1
        if held <= bound * self._told:
            return ""
        while held > bound * self._told:
            self._told *= 2
        return (
            f"this daemon holds {held / 1e9:.1f} GB of memory, but its bounds add up to {bound / 1e9:.1f} GB: a member"
            " may be sending it one endless message"
        )
