"""Events of membership, and faults of other peers."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event
from gossipdp.protocol.wire.messages import Decision, Member, Receipt, State

__all__ = [
    "Decided",
    "Joined",
    "Left",
    "MemberChanged",
    "MessageDropped",
    "OperatorDiffers",
    "Struck",
    "UpdateRefused",
]


@dataclass(frozen=True, slots=True)
class MemberChanged(Event):
    """The record of a member changed its state, incarnation, address or phase."""

    member: Member
    before: State | None
    """None for a member that was not known"""


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The first other member has answered."""

    through: bytes
    """its id"""


@dataclass(frozen=True, slots=True)
class Left(Event):
    """This peer has told members that it leaves. The driver may stop."""


@dataclass(frozen=True, slots=True)
class UpdateRefused(Event):
    """Data of a peer was refused before a byte of it reached the anchor."""

    peer: bytes
    reason: str
    """Of an exchange: payload, nan, share. Of a state transfer: hash, manifest, schema, implausible, payload (of a
    witness). Of moments: moments, manifest of moments, schema. Of membership: signature of a member record,
    signature of a progress report. Of admission: signature of a decision. Of rumours: payload, hash, signature,
    terms, table, void."""


@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """A verified peer sent undecodable or out-of-protocol bytes."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Struck(Event):
    """A proven fault of `peer` counts against it (`strikes`)."""

    peer: bytes
    reason: str
    """as in UpdateRefused, or garbled"""
    strikes: int
    """strikes of the peer that have not expired, this one included"""
    pause: float
    """seconds for which it is set aside; 0 if it is not"""


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """Decisions of the network's operator stand from now on."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class ReceiptsTaken(Event):
    """Peers have what a decision gives them: an invite has let them in, or they hold the network's new secret."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class OperatorDiffers(Event):
    """Members follow the decisions of another operator than this host, which may know none."""

    through: bytes
    """the member that said so"""
    operator: bytes
    """public key"""
