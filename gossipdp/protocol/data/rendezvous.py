"""Owners of blocks by highest random weight: peers that know the same members agree without a message.

Thaler and Ravishankar (1998, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking
6(1)): each member has a pseudo-random weight for each block, and the heaviest owns it. A new member takes its share
evenly from all others, a leaving one leaves its share evenly to them, and nothing else moves. A weight depends on the
member, the block's number and the number of blocks. It is the same in all epochs, because numbers are shuffled anyway.

Sets of blocks are whole numbers, bit b for block b. Weights are sliced: the first number holds the highest bit of each
block's weight, the next the second highest, and so on. So a few operations on such numbers compare thousands of blocks.
Nothing here knows which members are alive, or which blocks are finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

__all__ = ["Owners", "Weights", "elements", "weights"]

Weights: TypeAlias = tuple[int, ...]
"""weights of one member for all blocks, sliced"""
BITS: Final = 48
"""bits of a weight: with 16,384 blocks and members, two tie for a block in one of a million such networks"""
_LOOK_EVERY: Final = 8
"""bits compared between two checks for an early end"""


def weights(member: bytes, blocks: int) -> Weights:
    """The weights of `member` for `blocks` blocks."""
    size = (blocks + 7) // 8
    digest = hashlib.shake_128(b"gossipdp blocks" + member).digest(BITS * size)
    slices = (int.from_bytes(digest[place * size :][:size], "little") for place in range(BITS))
    return tuple(each & ((1 << blocks) - 1) for each in slices)


def elements(blocks: int) -> Iterator[int]:
    """The elements of a set, ascending."""
    # Searching a text is ten times as fast as arithmetic on such numbers.
    bits = bin(blocks)[:1:-1]
    place = bits.find("1")
    while place >= 0:
        yield place
        place = bits.find("1", place + 1)


class Owners:
    """The blocks that each member owns.

    Args:
        blocks: the number of blocks.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._weights: dict[bytes, Weights] = {}
        self._sets: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[bytes]:
        """The members, ascending."""
        return iter(self._sets)

    def __contains__(self, member: bytes) -> bool:
        return member in self._sets

    def __len__(self) -> int:
        return len(self._sets)

    def of(self, member: bytes) -> int:
        """The blocks of `member`; none for a stranger."""
        return self._sets.get(member, 0)

    def become(self, members: Iterable[bytes]) -> bool:
        """Set the members. Returns whether they changed."""
        now = sorted(set(members))
        if now == [*self._sets]:
            return False
        self._weights = {member: self._weights.get(member) or weights(member, self.blocks) for member in now}
        self._sets = self.shared((1 << self.blocks) - 1, now)
        return True

    def shared(self, blocks: int, members: Collection[bytes]) -> dict[bytes, int]:
        """Share `blocks` among some members: each goes to the one for which it is heaviest, the first on a tie."""
        left = [blocks] * len(members)
        for place, bits in enumerate(self._sliced(members)):
            highest = _greatest(left, bits)
            left = [mine & (own | ~highest) for mine, own in zip(left, bits, strict=True)]
            if place % _LOOK_EVERY == 0 and sum(map(int.bit_count, left)) <= blocks.bit_count():
                break
        found, taken = {}, 0
        for member, mine in zip(members, left, strict=True):
            found[member] = mine & ~taken
            taken |= mine
        return found

    def _sliced(self, members: Iterable[bytes]) -> Iterator[tuple[int, ...]]:
        """Weights of the members, the highest bits of all first."""
        return zip(*(self._weights[member] for member in members), strict=True)

    def heaviest(self, member: bytes, blocks: int, count: int = 1) -> int:
        """The `count` heaviest of `blocks` for this member (at least 1); all of them if there are no more."""
        found = 0
        for bits in self._weights[member]:
            if not count:
                return found
            if blocks.bit_count() <= count:
                return found | blocks
            ones = blocks & bits
            if ones.bit_count() > count:
                blocks = ones
            else:
                found, count, blocks = found | ones, count - ones.bit_count(), blocks & ~bits
        return found or blocks & -blocks

    def lightest(self, members: Collection[bytes], blocks: int) -> int:
        """The one of `blocks` whose greatest weight among `members` is the least; any of several equal."""
        left = [blocks] * len(members)
        for bits in self._sliced(members):
            highest = _greatest(left, bits)
            left = [mine & (own | ~highest) for mine, own in zip(left, bits, strict=True)]
            blocks = blocks & ~highest or blocks
        return blocks & -blocks


def _greatest(left: list[int], bits: tuple[int, ...]) -> int:
    """The blocks with this bit in their greatest weight. `left`: the blocks for which each member may be heaviest."""
    found = 0
    for mine, own in zip(left, bits, strict=True):
        found |= mine & own
    return found
