"""Whether a model fits in this host's memory, asked before the daemon or a training process takes any of it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gossipdp.errors import HardwareError
from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.free_memory import Free, free_memory, holders, own
from gossipdp.runtime.link.server import NO_ROOM
from gossipdp.runtime.memory_need import MemoryPlan

__all__ = ["Room", "Shortage"]

WIDTH: Final = 70
"""characters of a line of figures, which a terminal of 80 columns shows whole"""
MARGIN: Final = 0.03
"""share of what is still to be taken that may be missing: both figures are estimates"""


class Shortage(NamedTuple):
    """seen: need and free memory. do: what to do about it."""

    seen: str
    do: str


class Room:
    """Compares what a model needs with the memory that is free.

    Args:
        plan: the settings.
        trains: a training process will attach, and none that trained before may still hold shared memory.
        held: bytes that this process has already.
        free: what can still be taken; None if nothing tells.
        disk: bytes for which the disk has room.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        *,
        trains: bool = False,
        held: Callable[[], int] = own,
        free: Callable[[], Free | None] = free_memory,
        disk: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.plan = plan
        self._trains, self._held, self._free, self._disk = trains, held, free, disk

    def shortage(self, parameters: int, shared: int, *, attaches: bool) -> Shortage | None:
        """What is missing, or None if the model fits or the free memory is not known.

        Args:
            parameters: of the model.
            shared: bytes of shared memory that exist already.
            attaches: a training process asks for shared memory now.
        """
        disk, free = self._disk(), self._free()
        need = self.plan.need(parameters, disk)
        to_come = max(0, need.private - self._held())
        if attaches or self._trains:
            to_come += max(0, need.shared - shared)
        if free is None or to_come * (1.0 - MARGIN) <= free.bytes:
            return None
        told = [
            f"{parameters:,} parameters need {_gb(need.total)} at the peak:",
            f"{need};",
            f"{_gb(to_come)} more than is held now,",
            f"and {_gb(max(0, free.bytes))} are free of the {_gb(free.of)} of {free.what}",
            *_rest(holders(free)),
        ]
        lines = [line for each in told for line in textwrap.wrap(each, WIDTH, break_on_hyphens=False)]
        ways = [self.plan.saving(parameters, disk), "free memory, raise its limit, or use a host with more"]
        return Shortage("\n        ".join(lines), "; ".join(filter(None, ways)))

    def require(self, parameters: int, shared: int = 0) -> None:
        """Raise HardwareError (GD-502) if a model with this number of parameters does not fit."""
        if (short := self.shortage(parameters, shared, attaches=False)) is not None:
            raise HardwareError("GD-502", NO_ROOM, seen=short.seen, do=short.do)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _rest(processes: Sequence[tuple[int, str, int]]) -> list[str]:
    told = ", ".join(f"{printable(name)} (process {pid}) {_gb(size)}" for pid, name, size in processes)
    return [f"other processes hold most of the rest: {told}"] if told else []
