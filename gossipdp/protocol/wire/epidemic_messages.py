"""What peers of `epidemic` say: rumours and their parts, who pushes which to whom, and what an epoch holds of them.

The messages of Plumtree (Leitao et al. 2007), with parts, and of the comparison of epochs; limits and fields as in
`messages`, ids in `catalogue`. Nothing here may hold behaviour: what is signed stands in `rumour_header`, what is done
about a message in `rumours` and `spreading`.
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
"""rumours are counted from 0 in each epoch: 16 of one origin's life at the most"""
MAX_NAMES: Final = 64
"""rumours named in one message"""
MAX_WANTS: Final = 48
"""rumours asked for in one message"""
MAX_MARKS: Final = 16
"""epochs in one message"""

RumourName = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The hash of what its origin signed."""
PartSet = Annotated[int, Meta(ge=0, le=(1 << MAX_PARTS) - 1)]
"""Bit k stands for part k."""
MOST_SAMPLES: Final = 1 << 40
"""of one rumour: sums over an epoch fit 63 bits"""
LONGEST: Final = 2.0**100
"""that an increment may say it is"""
NO_BASE: Final = bytes(16)
"""in the place of a founding's name: there is no state"""
NO_RUN: Final = bytes(16)
"""in the place of a run's name: nobody has told it"""


class Rumour(Message, frozen=True):
    """One peer's increment of one round, as its origin signed it; all but `hops` is signed. Buffers: [size and hash of
    each part], or none when it is only shown as a proof."""

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
    """names the run and its settings (`RumoursConfig.run`)"""
    length: Annotated[float, Meta(ge=0.0, le=LONGEST)] = 0.0
    """||alpha p c||: how far it moves an anchor, if it is not cut"""


class RumourPart(Message, frozen=True):
    """One part. Buffers: [payload]."""

    name: RumourName
    part: Annotated[int, Meta(ge=0, le=MAX_PARTS - 1)]


class Got(Message, frozen=True):
    """The receiver of a rumour wants it, and has these parts."""

    name: RumourName
    have: PartSet


class IHave(Message, frozen=True):
    """The sender has these rumours whole, or the proof against those who sent some (Plumtree's lazy push)."""

    epoch: U32
    names: Annotated[tuple[RumourName, ...], Meta(min_length=1, max_length=MAX_NAMES)]
    hops: Annotated[int, Meta(ge=1, le=255)] = 255
    """links from the origin to the receiver through the sender; 255 for many or unknown"""


class Want(Struct, frozen=True, array_like=True):
    name: RumourName
    have: PartSet


class Graft(Message, frozen=True):
    """Send what I lack of these, and push me rumours of their origins from now on."""

    wants: Annotated[tuple[Want, ...], Meta(min_length=1, max_length=MAX_WANTS)]


class Prune(Message, frozen=True):
    """Do not push me these, nor others of their origins; or: you cannot have these from me."""

    names: Annotated[tuple[RumourName, ...], Meta(max_length=MAX_NAMES)] = ()
    link: bool = True
    """False: and we are no neighbours any more"""


class Stage(enum.IntEnum):
    """How far an epoch is, by the clock as its sender knows it."""

    OPEN = 0
    CLOSED = 1
    """as good as complete: its samples weigh what comes after"""
    SETTLED = 2
    """never to change"""


class EpochMark(Struct, frozen=True, array_like=True):
    epoch: U32
    stage: Stage
    count: U32
    digest: Digest
    """of the set of rumours, whatever their order"""


class EpochDigest(Message, frozen=True):
    """Which rumours the sender has of each epoch since `first`; epochs not listed have none. Buffers: [signature of
    the sender over all of it but `reply` and `link`]."""

    first: U32
    """the first that is not settled"""
    marks: Annotated[tuple[EpochMark, ...], Meta(max_length=MAX_MARKS)]
    reply: bool
    """if the receiver's differ, which are they?"""
    link: bool = False
    """the sender has chosen the receiver as a neighbour"""
    base: Digest = NO_BASE
    """names the founding that the sender's state goes back to"""
    run: Digest = NO_RUN
    """names the run and its settings (`RumoursConfig.run`)"""
    number: U63 = 0
    """(incarnation << 32 | counter) of what the sender says of this kind: an earlier one may come late"""
