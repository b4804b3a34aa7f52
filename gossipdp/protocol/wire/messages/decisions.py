"""The message that spreads what the network's operator has decided about its members."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import U63, UNSIGNED, Message, Name, PeerId, Signature

__all__ = ["MAX_DECISIONS", "Decision", "Decisions", "Verdict"]

MAX_DECISIONS: Final = 7
"""decisions in one message: 7 of at most 520 bytes fit the header"""


class Verdict(enum.IntEnum):
    """What a decision says of its subject."""

    NONE = 0
    """nothing: the subject is neither banned nor allowed. Of the network: it takes every peer with its secret."""
    BANNED = 1
    ALLOWED = 2
    CLOSED = 3
    """of the network: it takes only the peers that are allowed"""


class Decision(Struct, frozen=True, array_like=True):
    """One decision, signed by the operator. Of two about one subject the one with the higher number stands."""

    number: U63
    verdict: Verdict
    subject: Annotated[bytes, Meta(max_length=32)]
    """a peer's id; b"" for the network"""
    name: Name = ""
    """name of the subject when the operator decided"""
    reason: Name = ""
    time: U63 = 0
    """seconds since 1970 on the operator's clock"""
    signature: Signature = UNSIGNED


class Decisions(Message, frozen=True):
    """Decisions of one operator, and what the sender has of them."""

    operator: PeerId
    digest: Annotated[bytes, Meta(max_length=16)] = b""
    """of all decisions that the sender has; b"": it does not ask for a comparison"""
    reply: bool = False
    """the sender asks for the receiver's decisions if its digest differs"""
    decisions: Annotated[tuple[Decision, ...], Meta(max_length=MAX_DECISIONS)] = ()
