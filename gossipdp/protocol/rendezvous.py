"""Who owns which block: highest random weight, so that all who know the same members agree without a word.

Thaler and Ravishankar (1998, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking
6(1)): each member has a pseudo-random weight for each block, and the heaviest owns it. A member that comes takes its
share evenly from all others, one that goes leaves its own evenly to them, and nothing else moves. Weights depend on the
member and the block's number alone: they are the same in all epochs, for what a number stands for is shuffled anyway.

Sets of blocks are whole numbers, bit b for block b. Nothing here may know who is alive, or what is finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocks", "Owners", "elements", "set_of", "weights"]

Blocks = NDArray[np.intp]
"""numbers of blocks"""
_NOBODY = -1


def weights(member: bytes, blocks: int) -> NDArray[np.uint64]:
    """64 bits for each block, not all 0. Two members weigh the same once in 2^64 blocks."""
    digest = hashlib.shake_128(b"gossipdp blocks" + member).digest(8 * blocks)
    return np.frombuffer(digest, "<u8").astype(np.uint64) | np.uint64(1)


def elements(blocks: int) -> Blocks:
    """The members of a set, ascending."""
    octets = np.frombuffer(blocks.to_bytes((blocks.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little"))


def set_of(inside: NDArray[np.bool_]) -> int:
    """The set of those blocks of which this is true."""
    return int.from_bytes(np.packbits(inside, bitorder="little").tobytes(), "little")


class Owners:
    """The blocks of each member.

    Args:
        blocks: how many there are.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._weights: dict[bytes, NDArray[np.uint64]] = {}
        self._numbers: dict[bytes, int] = {}
        """as members are called in `_owner`"""
        self._next = 0
        self._owner = np.full(blocks, _NOBODY)
        self._heaviest = np.zeros(blocks, np.uint64)
        self._sets: dict[bytes, int] = {}
        """those that have been asked for"""

    def __iter__(self) -> Iterator[bytes]:
        """The members, ascending."""
        return iter(sorted(self._numbers))

    def __contains__(self, member: bytes) -> bool:
        return member in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, member: bytes) -> int:
        """Its blocks; none for a stranger."""
        if member not in self._numbers:
            return 0
        if member not in self._sets:
            self._sets[member] = set_of(self._owner == self._numbers[member])
        return self._sets[member]

    def weigh(self, member: bytes, blocks: Blocks) -> NDArray[np.uint64]:
        """What each of `blocks` weighs to a member."""
        return self._weights[member][blocks]

    def heaviest(self, members: Collection[bytes], blocks: Blocks) -> NDArray[np.uint64]:
        """What each weighs to whom of `members` it is heaviest for; 0 without any."""
        found = np.zeros(len(blocks), np.uint64)
        for member in members:
            np.maximum(found, self.weigh(member, blocks), out=found)
        return found

    def become(self, members: Iterable[bytes]) -> bool:
        """These are the members now; False if they were before."""
        now = set(members)
        gone, come = sorted(self._numbers.keys() - now), sorted(now - self._numbers.keys())
        if not gone and not come:
            return False
        left = np.flatnonzero(np.isin(self._owner, [self._numbers.pop(member) for member in gone]))
        self._owner[left], self._heaviest[left] = _NOBODY, 0
        for member in gone:
            del self._weights[member]
        for member in sorted(self._numbers) if len(left) else ():
            self._claim(member, left)
        everything = np.arange(self.blocks)
        for member in come:
            self._numbers[member], self._next = self._next, self._next + 1
            self._weights[member] = weights(member, self.blocks)
            self._claim(member, everything)
        self._sets.clear()
        return True

    def _claim(self, member: bytes, blocks: Blocks) -> None:
        own = self.weigh(member, blocks)
        won = own > self._heaviest[blocks]
        taken = blocks[won]
        self._owner[taken], self._heaviest[taken] = self._numbers[member], own[won]
