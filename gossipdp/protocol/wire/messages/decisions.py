"""The message that spreads what the network's operator has decided about its members."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import U63, UNSIGNED, Message, Name, PeerId, Signature

__all__ = ["MAX_ALLOWED", "Decision", "Decisions", "Verdict"]

MAX_ALLOWED: Final = 16_384
"""peers that a closed network can name, as many as a view has members"""


class Verdict(enum.IntEnum):
    """What a decision says of its subject."""

    NONE = 0
    """of a peer: it is not banned"""
    BANNED = 1
    """of a peer"""
    OPEN = 2
    """of the network: it takes every peer with its secret that is not banned"""
    CLOSED = 3
    """of the network: it takes only the peers that the decision names"""


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
    allowed: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_ALLOWED)] = ()
    """of the network: the peers that it takes while it is closed"""
    signature: Signature = UNSIGNED


class Decisions(Message, frozen=True):
    """What the sender has of one operator's decisions.

    A raw buffer behind it may hold decisions, as `admission.packing` writes them.
    """

    operator: PeerId
    digest: Annotated[bytes, Meta(max_length=16)] = b""
    """of all decisions that the sender has; b"": it does not ask for a comparison"""
    reply: bool = False
    """the sender asks for the receiver's decisions if its digest differs"""
