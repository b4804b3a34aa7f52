"""Which finished blocks a peer believes, so that no single member ends a pass over the data.

A message says which blocks are finished, and not by whom. So what one member tells is believed as fast as blocks can
be read: at most `FASTER` times as fast as this peer reads. What goes beyond waits until the member tells it again
later, or a second member with a voice tells it as well, as after a cut. A peer that does not know yet how long a block
takes believes all: it has just come and follows the others.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FASTER", "FinishedClaims", "lowest"]

FASTER: Final = 8.0
"""times this peer's rate at which one member may tell finished blocks: it passes on what others have read, too"""
LEAST: Final = 48
"""blocks that any member may tell at once: what two readers have open"""
_TELLERS: Final = 64
"""members whose claims are kept"""


def lowest(blocks: int, most: int) -> int:
    """The `most` lowest blocks of the set `blocks`."""
    if blocks.bit_count() <= most:
        return blocks
    kept = 0
    for _ in range(most):
        lowest_bit = blocks & -blocks
        kept |= lowest_bit
        blocks ^= lowest_bit
    return kept


class FinishedClaims:
    """What members have told of one data set beyond what is believed. A set has the blocks of two epochs."""

    def __init__(self) -> None:
        self._rooms: dict[bytes, tuple[float, float]] = {}
        """member -> blocks that it may still tell, and when that was so"""
        self._told: dict[bytes, int] = {}
        """member with a voice -> blocks that it told and that were not believed"""

    def next_epoch(self, blocks: int) -> None:
        """The first of the two epochs is finished. blocks: of an epoch."""
        self._told = {peer: told >> blocks for peer, told in self._told.items()}

    def believed(self, source: bytes, told: int, usual: float, now: float, *, voice: bool) -> int:
        """The blocks that are believed of those that `source` tells.

        Args:
            told: blocks that are new to this peer.
            usual: seconds that this peer takes to read a block; 0: unknown.
            voice: the word of `source` counts.
        """
        if not usual:
            return told
        room, at = self._rooms.pop(source, (float(LEAST), now))
        room += FASTER * (now - at) / usual
        others = 0
        for peer, claimed in self._told.items() if voice else ():
            others |= claimed if peer != source else 0
        agreed = told & others
        taken = agreed | lowest(told & ~agreed, int(room))
        self._rooms[source] = room - (taken & ~agreed).bit_count(), now
        self._told.pop(source, None)
        if voice and taken != told:
            self._told[source] = told & ~taken
        if len(self._rooms) > _TELLERS:
            oldest = next(iter(self._rooms))
            del self._rooms[oldest]
            self._told.pop(oldest, None)
        return taken
