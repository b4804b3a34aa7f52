"""Who owns which block: highest random weight, so that all who know the same members agree without a word.

Thaler and Ravishankar (1998, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking
6(1)): each member has a pseudo-random weight for each block, and the heaviest owns it. A member that comes takes its
share evenly from all others, one that goes leaves its own evenly to them, and nothing else moves. Weights depend on the
member, the block's number and how many blocks there are: they are the same in all epochs, for what a number stands for
is shuffled anyway.

Sets of blocks are whole numbers, bit b for block b, and so are weights, sliced: the first number holds the highest bit
of each block's weight, the next the second highest, and so on. Thousands of blocks are compared by a few operations on
such numbers. Nothing here may know who is alive, or what is finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

__all__ = ["Owners", "Weights", "elements", "weights"]

Weights: TypeAlias = tuple[int, ...]
"""of one member for all blocks, sliced"""
BITS: Final = 48
"""of a weight: with 16,384 blocks and 16,384 members, two are heaviest for a block once in a million such networks"""
_LOOK_EVERY: Final = 8
"""bits compared before it is looked whether all is decided"""


def weights(member: bytes, blocks: int) -> Weights:
    size = (blocks + 7) // 8
    digest = hashlib.shake_128(b"gossipdp blocks" + member).digest(BITS * size)
    slices = (int.from_bytes(digest[place * size :][:size], "little") for place in range(BITS))
    return tuple(each & ((1 << blocks) - 1) for each in slices)


def elements(blocks: int) -> Iterator[int]:
    """The members of a set, ascending."""
    # Searching a text takes a tenth of the time that arithmetic on such numbers does.
    bits = bin(blocks)[:1:-1]
    place = bits.find("1")
    while place >= 0:
        yield place
        place = bits.find("1", place + 1)


class Owners:
    """The blocks of each member.

    Args:
        blocks: how many there are.
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
        """Its blocks; none for a stranger."""
        return self._sets.get(member, 0)

    def become(self, members: Iterable[bytes]) -> bool:
        """These are the members now; False if they were before."""
        now = sorted(set(members))
        if now == [*self._sets]:
            return False
        self._weights = {member: self._weights.get(member) or weights(member, self.blocks) for member in now}
        self._sets = self.shared((1 << self.blocks) - 1, now)
        return True

    def shared(self, blocks: int, members: Collection[bytes]) -> dict[bytes, int]:
        """`blocks` among some of the members: each to the one it is heaviest for, the earlier of two as heavy."""
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
        """Their weights, the highest bits of all first."""
        return zip(*(self._weights[member] for member in members), strict=True)

    def heaviest(self, member: bytes, blocks: int, count: int = 1) -> int:
        """Those of `blocks` that weigh most to this member, so many (1 at least); all of them if there are no more."""
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
        """The one of `blocks` that weighs least to whom of `members` it weighs most to; of several any."""
        left = [blocks] * len(members)
        for bits in self._sliced(members):
            highest = _greatest(left, bits)
            left = [mine & (own | ~highest) for mine, own in zip(left, bits, strict=True)]
            blocks = blocks & ~highest or blocks
        return blocks & -blocks


def _greatest(left: list[int], bits: tuple[int, ...]) -> int:
    """Which blocks have this bit in their greatest weight, if `left` says for whom each may be the heaviest."""
    found = 0
    for mine, own in zip(left, bits, strict=True):
        found |= mine & own
    return found
