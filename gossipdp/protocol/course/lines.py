"""The name of a side: how lines are ordered, and the line that this peer holds."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from msgspec.structs import replace

from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.wire.messages import Line

__all__ = ["LAST", "NO_LINE", "HeldLine", "strength"]

NO_LINE: Final = Line(0, 0, 0, 0, b"")
LAST: Final = 0xFFFF_FFFF
"""Greatest generation of a line: a larger one cannot be encoded."""

Strength: TypeAlias = tuple[bool, int, int, int, bytes, int]


def strength(line: Line) -> Strength:
    """Sort key of lines: training, members, clock, rounds, then the lower id of the maker, then the generation."""
    return (
        line.trains,
        line.members,
        line.clock,
        line.rounds,
        bytes(255 - byte for byte in line.maker),
        line.generation,
    )


class HeldLine:
    """The line that this peer holds.

    Args:
        maker: This peer's id.
    """

    def __init__(self, maker: bytes) -> None:
        self._maker = maker
        self.line = NO_LINE
        self.since = -math.inf
        """Time at which this peer took the line."""
        self.hearsay = False
        """This peer named the line because another said that it is apart. Such a line counts no members."""

    def take(self, line: Line, now: float) -> None:
        """Hold a line that another peer named."""
        self.line, self.since, self.hearsay = line, now, False

    def name(self, own: Own, now: float, *, members: int, trains: bool, hearsay: bool, corrects: bool) -> None:
        """Name this peer's side by its own progress. `corrects`: keep the generation of the line held."""
        generation = self.line.generation if corrects else self._next_generation()
        self.line = Line(generation, members, own.clock, own.rounds, self._maker, trains)
        self.since, self.hearsay = now, hearsay

    def recount(self, members: int, now: float) -> None:
        """Name the line anew with another number of members, at the same progress."""
        self.take(replace(self.line, generation=self._next_generation(), members=members, maker=self._maker), now)

    def _next_generation(self) -> int:
        # A peer may claim the last generation. One more would make this peer's messages unreadable.
        return min(self.line.generation + 1, LAST)
