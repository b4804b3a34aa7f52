"""Messages of `epidemic`: rumours and their parts, the push tree of each origin, and the comparison of epochs.

The tree messages are those of Plumtree (Leitao et al. 2007), with parts. Field types and limits are those of
`messages`; `table` holds the ids. No behaviour is defined here.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages import U32, U63, Digest, Message, PeerId, Weight

MAX_PARTS: Final = 60
"""parts of one rumour's payload"""
MAX_PART: Final = 1 << 20
"""bytes of one part"""
MAX_SEQUENCE: Final = 15
"""largest sequence number: one life of an origin makes at most 16 rumours in an epoch"""
MAX_NAMES: Final = 64
"""rumours named in one message"""
MAX_WANTS: Final = 48
"""rumours asked for in one message"""
MAX_MARKS: Final = 16
"""epochs in one message"""

RumourName = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""Hash of the part that its origin signed."""
PartSet = Annotated[int, Meta(ge=0, le=(1 << MAX_PARTS) - 1)]
"""Bit k stands for part k."""
MOST_SAMPLES: Final = 1 << 40
"""samples of one rumour; sums over an epoch fit 63 bits"""
LONGEST: Final = 2.0**100
"""largest length that an increment may report"""
NO_BASE: Final = bytes(16)
"""stands for the name of a founding while there is no state"""
NO_RUN: Final = bytes(16)
"""stands for the name of a run while it is unknown"""


class Rumour(Message, frozen=True):
    """One peer's increment of one round. The origin signs all fields but `hops`.

    Buffers: [size and hash of each part]; none when the rumour only serves as a proof.
    """

    origin: PeerId
    incarnation: U32
    epoch: U32
    """clock // span"""
    sequence: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]
    """counts the origin's rumours in this epoch"""
    weight: Weight
    """p: the increment's share, fixed by the origin"""
    clock: U63
    """the network's clock when the increment was cut, in steps"""
    samples: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)]
    size: Annotated[int, Meta(ge=1, le=MAX_PARTS * MAX_PART)]
    """bytes of the payload"""
    parts: Annotated[int, Meta(ge=1, le=MAX_PARTS)]
    root: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """hash of the sizes and hashes of the parts"""
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
    hops: Annotated[int, Meta(ge=1, le=255)] = 1
    """links from the origin to the receiver"""
    run: Digest = NO_RUN
    """names the run and its settings (`BroadcastConfig.run`)"""
    length: Annotated[float, Meta(ge=0.0, le=LONGEST)] = 0.0
    """||alpha p c||: its movement of an anchor before any bound"""


class RumourPart(Message, frozen=True):
    """One part of a rumour. Buffers: [payload]."""

    name: RumourName
    part: Annotated[int, Meta(ge=0, le=MAX_PARTS - 1)]


class Got(Message, frozen=True):
    """The sender wants this rumour, and has these parts of it."""

    name: RumourName
    have: PartSet


class IHave(Message, frozen=True):
    """The sender has these rumours whole, or a proof against their origins (Plumtree's lazy push)."""

    epoch: U32
    names: Annotated[tuple[RumourName, ...], Meta(min_length=1, max_length=MAX_NAMES)]
    hops: Annotated[int, Meta(ge=1, le=255)] = 255
    """links from the origin through the sender to the receiver; 255 for many or unknown"""


class Want(Struct, frozen=True, array_like=True):
    name: RumourName
    have: PartSet


class Graft(Message, frozen=True):
    """Send the missing parts of these, and push me rumours of their origins from now on."""

    wants: Annotated[tuple[Want, ...], Meta(min_length=1, max_length=MAX_WANTS)]


class Prune(Message, frozen=True):
    """Do not push me these rumours, nor other ones of their origins. As an answer: you cannot have these from me."""

    names: Annotated[tuple[RumourName, ...], Meta(max_length=MAX_NAMES)] = ()
    link: bool = True
    """False: the two peers are no longer neighbours"""


class Stage(enum.IntEnum):
    """Stage of an epoch, by the clock as the sender knows it."""

    OPEN = 0
    CLOSED = 1
    """nearly complete: its samples weigh later rumours"""
    SETTLED = 2
    """its set never changes again"""


class EpochMark(Struct, frozen=True, array_like=True):
    epoch: U32
    stage: Stage
    count: U32
    digest: Digest
    """of the set of rumours, independent of their order"""


class EpochDigest(Message, frozen=True):
    """Which rumours the sender has of each epoch since `first`; epochs not listed have none.

    Buffers: [signature of the sender over all fields but `reply` and `link`].
    """

    first: U32
    """the first epoch that is not settled"""
    marks: Annotated[tuple[EpochMark, ...], Meta(max_length=MAX_MARKS)]
    reply: bool
    """the sender asks which rumours the receiver has, where they differ"""
    link: bool = False
    """the sender has chosen the receiver as a neighbour"""
    base: Digest = NO_BASE
    """names the founding from which the sender's state comes"""
    run: Digest = NO_RUN
    """names the run and its settings (`BroadcastConfig.run`)"""
    number: U63 = 0
    """(incarnation << 32 | counter) of the sender's digests: an earlier one may come late"""
