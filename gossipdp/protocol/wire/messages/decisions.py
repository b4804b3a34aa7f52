"""The message that spreads what the network's operator has decided about its members."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import U63, UNSIGNED, Message, Name, PeerId, Signature

__all__ = [
    "BOX_BYTES",
    "MAX_ALLOWED",
    "MAX_HOLDERS",
    "MAX_USES",
    "Decision",
    "Decisions",
    "HostInvite",
    "NewSecret",
    "Receipt",
    "Verdict",
]

MAX_ALLOWED: Final = 16_384
"""peers that a closed network can name, as many as a view has members"""
MAX_HOLDERS: Final = 4096
"""peers for which one decision can seal a new secret"""
MAX_USES: Final = 256
"""hosts that one invite can let in"""
BOX_BYTES: Final = 80
"""bytes of a secret of 32 bytes in a sealed box (libsodium): an ephemeral key, a tag and the secret"""


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
    INVITED = 4
    """of an invite's key: hosts that hold it may join"""
    REVOKED = 5
    """of an invite's key: the invite is no longer valid"""
    RENEWED = 6
    """of the network's secret: there is a new one"""


class HostInvite(Struct, frozen=True, array_like=True):
    """Whom an invite's key lets in."""

    expires: U63
    """seconds since 1970"""
    uses: Annotated[int, Meta(ge=1, le=MAX_USES)]
    """hosts that it lets in"""
    generation: U63
    """of the network's secret; a later one ends the invite"""


class NewSecret(Struct, frozen=True, array_like=True):
    """A new secret of the network. The number of its decision is its generation."""

    replaces: U63
    """the generation before"""
    until: U63
    """seconds since 1970; so long every peer with the secret before is let in, and then only named ones"""
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """of the secret"""
    boxes: Annotated[
        tuple[Annotated[bytes, Meta(min_length=BOX_BYTES, max_length=BOX_BYTES)], ...], Meta(max_length=MAX_HOLDERS)
    ]
    """the secret, sealed for each peer that the decision names, in their order"""


class Decision(Struct, frozen=True, array_like=True):
    """One decision, signed by the operator. Of two about one subject the one with the higher number stands."""

    number: U63
    verdict: Verdict
    subject: Annotated[bytes, Meta(max_length=32)]
    """a peer's id, or an invite's public key; b"" for the network, `admission.register.SECRET` for its secret"""
    name: Name = ""
    """name of the subject when the operator decided"""
    reason: Name = ""
    time: U63 = 0
    """seconds since 1970 on the operator's clock"""
    allowed: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_ALLOWED)] = ()
    """of the network: the peers that it takes while it is closed; of its secret: those that are to have it"""
    signature: Signature = UNSIGNED
    invite: HostInvite | None = None
    """of an invite's key"""
    secret: NewSecret | None = None
    """of the network's secret"""


class Receipt(Struct, frozen=True, array_like=True):
    """A peer has what a decision gives: an invite has let it in, or it holds the new secret."""

    subject: Annotated[bytes, Meta(max_length=32)]
    """of the decision"""
    number: U63
    """of the decision"""
    peer: PeerId
    signature: Signature = UNSIGNED
    """by the invite's key, or by the peer that holds the secret"""


class Decisions(Message, frozen=True):
    """What the sender has of one operator's decisions.

    A raw buffer behind it may hold decisions, as `admission.packing` writes them.
    """

    operator: PeerId
    digest: Annotated[bytes, Meta(max_length=16)] = b""
    """of all decisions that the sender has; b"": it does not ask for a comparison"""
    reply: bool = False
    """the sender asks for the receiver's decisions if its digest differs"""
