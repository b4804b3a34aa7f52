"""The message by which peers share leases on the blocks of a data set."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import U32, Digest, Message, Name

__all__ = ["MAX_BLOCKS", "MAX_LEASES", "MAX_READERS", "Coverage", "Reader"]

MAX_BLOCKS: Final = 16_384
"""blocks of an epoch of a data set"""
MAX_LEASES: Final = 24
"""open blocks that one peer reports"""
MAX_READERS: Final = 24
"""readers of a data set in one message"""


class Reader(Struct, frozen=True, array_like=True):
    """Which blocks of a data set one peer has open. A later (incarnation, sequence) overrides an earlier one."""

    peer: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """the first bytes of its id"""
    incarnation: U32
    sequence: U32
    """counts its reports in this incarnation"""
    reads: bool
    """it trains on this data set; False: it did before"""
    leases: Annotated[tuple[U32, ...], Meta(max_length=MAX_LEASES)] = ()
    """the epoch's last 16 bits << 16 | block"""


class Coverage(Message, frozen=True):
    """What the sender knows of a data set.

    Buffers: [blocks finished in `epoch`, blocks finished in the next one], as `blocks.pack` writes a set.
    """

    data: Digest
    name: Name
    blocks: Annotated[int, Meta(ge=1, le=MAX_BLOCKS)]
    """blocks of an epoch"""
    epoch: U32
    """the first epoch that is not finished"""
    reply: bool
    """the sender asks what the receiver knows"""
    readers: Annotated[tuple[Reader, ...], Meta(max_length=MAX_READERS)] = ()
