"""Messages of membership (SWIM with Lifeguard), and the two records that they carry."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import (
    PRINTABLE,
    PROTOCOL_VERSION,
    U32,
    U63,
    UNSIGNED,
    Address,
    Loss,
    Message,
    Name,
    PeerId,
    Place,
    Signature,
    StepRate,
)

__all__ = [
    "DIGEST_BYTES",
    "MAX_ACCUSERS",
    "MAX_DIGEST",
    "MAX_OTHERS",
    "MAX_RECORDS",
    "Member",
    "Nack",
    "Phase",
    "Ping",
    "PingRequest",
    "Pong",
    "Progress",
    "PushPull",
    "State",
]

MAX_RECORDS: Final = 40
"""member records in one message; fewer if they are long, because all of them must fit the header"""
DIGEST_BYTES: Final = 256
"""bytes of one part of a view's digest, or of a list of marks"""
MAX_DIGEST: Final = 8
"""parts of a digest in one message"""
MAX_OTHERS: Final = 3
"""addresses of one member beside its first one; a liar may name that many hosts to dial"""
MAX_ACCUSERS: Final = 8
"""accusers of one suspect; a message takes fewer records that name many"""


class State(enum.IntEnum):
    """What the network believes of a member (SWIM, Das et al. 2002, section 4.2)."""

    ALIVE = 0
    SUSPECT = 1
    FAILED = 2
    LEFT = 3


class Phase(enum.IntEnum):
    """How far a member is with the end of its run (`finishing`)."""

    RUNNING = 0
    """it trains, or may"""
    WAITING = 1
    """its training is over, and it waits for the other members"""
    CLOSING = 2
    """it exchanges with the members whose training is over, until all hold their mean"""
    DONE = 3
    """it holds that mean"""


class Member(Struct, frozen=True, array_like=True):
    """One member as gossiped. A later (incarnation, refutation), compared as a pair, overrides an earlier one.

    `incarnation` counts starts of the peer and names its state. `refutation` counts refuted suspicions within one
    incarnation, so that a refutation never disturbs an exchange.

    The member signs its own statement: that it is alive, or that it leaves (`signatures`). Other members may only add a
    suspicion or a failure to a statement of life. They pass on its signature.
    """

    id: PeerId
    name: Name
    address: Address
    incarnation: U32
    refutation: U32
    state: State
    version: Annotated[int, Meta(ge=1, le=255)] = PROTOCOL_VERSION
    software: Annotated[str, Meta(max_length=16, pattern=PRINTABLE)] = ""
    accusers: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_ACCUSERS)] = ()
    """of a suspect: the members that got no answer from it themselves; empty in all other states"""
    signature: Signature = UNSIGNED
    phase: Phase = Phase.RUNNING
    calls: bool = False
    """it asks all members to end their training"""
    others: Annotated[tuple[Place, ...], Meta(max_length=MAX_OTHERS)] = ()
    """further addresses at which the member may be dialled; void without `address`"""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses at which the member may be dialled; empty if it can only dial out."""
        return (self.address, *self.others) if self.address else ()


class Progress(Struct, frozen=True, array_like=True):
    """Progress of one peer, signed by that peer. Of two reports, the one that is ahead in every count stands."""

    id: PeerId
    clock: U63
    """outer clock in steps: the network's clock when the peer joined, plus its own steps since"""
    steps: U63
    samples: U63
    rounds: U32
    signature: Signature = UNSIGNED
    loss: Loss | None = None
    """the script's last loss when these counts were made; None: unknown"""
    eval_loss: Loss | None = None
    """the same of its evaluation"""


Bucket = Annotated[bytes, Meta(min_length=4, max_length=DIGEST_BYTES)]
Members = Annotated[tuple[Member, ...], Meta(max_length=MAX_RECORDS)]
ProgressReports = Annotated[tuple[Progress, ...], Meta(max_length=8)]


class Ping(Message, frozen=True):
    """Are you alive? Gossip rides on the question and on its answer (SWIM section 4.1)."""

    sequence: U63
    """(incarnation << 32 | counter): a repeated answer to an earlier life of the sender matches no ping"""
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """steps a second that the sender trains, 0 if none or unknown; None: the sender does not tell"""


class Pong(Message, frozen=True):
    """SWIM's ack. It is not named so because `Ack` acknowledges a chunk."""

    sequence: U63
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """as in Ping"""


class PingRequest(Message, frozen=True):
    """Ping `target` for me. Answer with a Pong of the same sequence, or with a Nack."""

    sequence: U63
    target: PeerId
    address: Address


class Nack(Message, frozen=True):
    """I am alive, but the target of your PingRequest did not answer me (Lifeguard section III.A)."""

    sequence: U63


class PushPull(Message, frozen=True):
    """A page of the sender's view, or one step of a comparison of two views."""

    reply: bool
    """the sender asks for records: those that are `listed`, those that differ from `digest`, or the whole view"""
    members: Members = ()
    progress: ProgressReports = ()
    digest: Annotated[tuple[Bucket, ...], Meta(max_length=MAX_DIGEST)] = ()
    """four bytes for each bucket of the sender's view, in order; empty without a digest"""
    listed: bool = False
    """`digest` holds a list of single records instead, the sender's or those it asks for (`digests`)"""
