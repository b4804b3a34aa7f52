"""Who owns which block: highest random weight, so that all who know the same members agree without a word.

Thaler and Ravishankar (1998, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking
6(1)): each member has a pseudo-random weight for each block, and the heaviest owns it. A member that comes takes its
share evenly from all others, one that goes leaves its own evenly to them, and nothing else moves. Weights depend on the
member and the block's number alone: they are the same in all epochs, for what a number stands for is shuffled anyway.

Sets of blocks are whole numbers, bit b for block b. Nothing here may know who is alive, or what is finished.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Iterator

__all__ = ["Owners", "elements", "weights"]

_WEIGHTS_A_HASH = 8


def weights(member: bytes, blocks: int) -> array[int]:
    """64 bits for each block."""
    found: array[int] = array("Q")
    for chunk in range(-(-blocks // _WEIGHTS_A_HASH)):
        digest = hashlib.blake2b(
            chunk.to_bytes(4, "little") + member, digest_size=64, person=b"gossipdp blocks"
        ).digest()
        found.extend(struct.unpack("<8Q", digest))
    return found[:blocks]


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
        self._weights: dict[bytes, array[int]] = {}
        self._sets: dict[bytes, int] = {}
        self._owner: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        """The members, ascending."""
        return iter(sorted(self._sets))

    def __contains__(self, member: bytes) -> bool:
        return member in self._sets

    def __len__(self) -> int:
        return len(self._sets)

    def of(self, member: bytes) -> int:
        """Its blocks; none for a stranger."""
        return self._sets.get(member, 0)

    def owner(self, block: int) -> bytes:
        """b"" while there are no members."""
        return self._owner[block] if self._owner else b""

    def weight(self, member: bytes, block: int) -> int:
        return self._weights[member][block]

    def heaviest(self, members: Iterable[bytes], block: int) -> bytes:
        """Which of `members`; the larger name, should two weigh the same."""
        return max(members, key=lambda member: (self._weights[member][block], member))

    def become(self, members: Iterable[bytes]) -> bool:
        """These are the members now; False if they were before."""
        now = set(members)
        gone, come = sorted(self._sets.keys() - now), sorted(now - self._sets.keys())
        for member in gone:
            self._leave(member)
        for member in come:
            self._join(member)
        return bool(gone or come)

    def _join(self, member: bytes) -> None:
        own = self._weights[member] = weights(member, self.blocks)
        taken = 0
        if not self._owner:
            self._owner = [member] * self.blocks
            taken = (1 << self.blocks) - 1
        else:
            for block, weight in enumerate(own):
                owner = self._owner[block]
                if (weight, member) > (self._weights[owner][block], owner):
                    self._owner[block] = member
                    self._sets[owner] ^= 1 << block
                    taken |= 1 << block
        self._sets[member] = taken

    def _leave(self, member: bytes) -> None:
        left = self._sets.pop(member)
        del self._weights[member]
        if not self._sets:
            self._owner = []
            return
        for block in elements(left):
            heir = self._owner[block] = self.heaviest(self._sets, block)
            self._sets[heir] |= 1 << block
