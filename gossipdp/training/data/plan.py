"""How an epoch is cut into blocks, and which samples a block holds. The same on every peer that reads together."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.protocol.wire.messages import MAX_BLOCKS

__all__ = ["Plan", "shuffled"]

BLOCK: Final = 256
"""samples of a block, unless an epoch would have more than `MAX_BLOCKS` blocks"""
_ROUNDS: Final = 4
"""rounds of the Feistel network"""


def shuffled(numbers: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The images of `numbers` under a permutation of 0 ... size - 1: the same on every host, and never held as a whole.

    A Feistel network of four rounds on the next power of four, followed until it comes back below `size` (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS, person=b"gossipdp shuffle").digest()
    keys = np.frombuffer(digest, "<u8")
    found = numbers.astype(np.uint64)
    walking = np.ones(len(found), bool)
    while walking.any():
        left, right = found[walking] >> np.uint64(half), found[walking] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        found[walking] = (left << np.uint64(half)) | right
        walking = found >= size
    return found.astype(np.int64)


class Plan(NamedTuple):
    """How an epoch is cut."""

    name: str
    """of the data set"""
    kind: str
    """what a number stands for: a "samples", "shards" or "examples" plan"""
    size: int
    """samples"""
    block: int
    """samples of a block"""
    seed: int
    shuffle: bool

    @classmethod
    def of(cls, name: str, kind: str, size: int, block: int | None, seed: int, shuffle: bool) -> Plan:
        """A checked plan; `block` None: a fitting size.

        Raises:
            DataError: GD-309, the data set is empty, has too many blocks, or its name is too long.
        """
        if size < 1:
            raise DataError("GD-309", "the data set is empty", seen=f"{size} samples", do="check its source")
        cut = block or max(BLOCK, -(-size // MAX_BLOCKS))
        if cut < 1 or -(-size // cut) > MAX_BLOCKS:
            least = -(-size // MAX_BLOCKS)
            raise DataError(
                "GD-309", "an epoch has too many blocks", seen=f"{size} samples in blocks of {cut}",
                do=f"make blocks of at least {least}",
            )  # fmt: skip
        if not 0 < len(name.encode()) <= 48:
            raise DataError("GD-309", "a data set's name has 1 to 48 bytes", seen=repr(name))
        return cls(name, kind, size, cut, seed, shuffle)

    @property
    def blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.size // self.block)

    @property
    def digest(self) -> bytes:
        """16 bytes that identify the plan among peers."""
        text = "/".join(map(str, self)).encode()
        return hashlib.blake2b(text, digest_size=16, person=b"gossipdp data").digest()

    def samples(self, lease: Lease) -> NDArray[np.int64]:
        """The numbers of the samples in a block, in their order."""
        first = lease.block * self.block
        places = np.arange(first, min(first + self.block, self.size), dtype=np.int64)
        return shuffled(places, self.size, self.seed, lease.epoch) if self.shuffle else places

    def place_of(self, block: int, epoch: int) -> int:
        """The place of `block` in a source that is read in order. Each epoch rotates the blocks by another number."""
        return (block + self._rotation(epoch)) % self.blocks

    def block_at(self, place: int, epoch: int) -> int:
        """The inverse of `place_of`."""
        return (place - self._rotation(epoch)) % self.blocks

    def _rotation(self, epoch: int) -> int:
        return int(shuffled(np.array([epoch % self.blocks]), self.blocks, self.seed, 0)[0]) if self.shuffle else 0
