"""The blocks of a data set: what names one, a lease on one, and sets of them as bytes.

Sets of blocks are whole numbers, bit b for block b.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gossipdp.protocol.data.rendezvous import elements
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BLOCKS

__all__ = ["DataSet", "Lease", "pack", "unpack"]

_RAW: Final = 0
_IN: Final = 1
_OUT: Final = 2
"""kinds of packed sets: all bits, a list of the elements, a list of the elements missing"""


class DataSet(NamedTuple):
    """What peers that read the same data must agree on."""

    digest: bytes
    """16 bytes that stand for all of it"""
    name: str
    blocks: int


class Lease(NamedTuple):
    """One block of one epoch, that a peer has open."""

    epoch: int
    block: int

    @property
    def code(self) -> int:
        """The lease on the wire. Receivers know the epoch but for its last 16 bits."""
        return (self.epoch & 0xFFFF) << 16 | self.block


def pack(blocks: int, count: int) -> bytes:
    """Encode a set of numbers below `count` as all bits, or as a list of what is in it or not; the shortest wins."""
    inside = blocks.bit_count()
    if min(inside, count - inside) * 2 < (count + 7) // 8:
        kind, listed = (_IN, blocks) if 2 * inside <= count else (_OUT, (1 << count) - 1 ^ blocks)
        numbers = list(elements(listed))
        return bytes([kind]) + struct.pack(f"<{len(numbers)}H", *numbers)
    return bytes([_RAW]) + blocks.to_bytes((count + 7) // 8, "little")


def unpack(data: Buffer, count: int) -> int | None:
    """Decode what `pack` wrote; None if it is malformed."""
    data = bytes(memoryview(data)[: 2 * MAX_BLOCKS + 2])
    if not data or len(data) > 1 + (count + 7) // 8:
        return None
    kind, body = data[0], data[1:]
    if kind == _RAW:
        found = int.from_bytes(body, "little")
        return found if found >> count == 0 else None
    if kind not in (_IN, _OUT) or len(body) % 2:
        return None
    listed = 0
    for number in struct.unpack(f"<{len(body) // 2}H", body):
        if number >= count:
            return None
        listed |= 1 << number
    return listed if kind == _IN else (1 << count) - 1 ^ listed
