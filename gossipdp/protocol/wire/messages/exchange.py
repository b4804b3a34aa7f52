"""Messages of the pairwise exchange: two partners average their anchors chunk by chunk."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gossipdp.protocol.wire.messages.base import (
    U32,
    U63,
    CodecName,
    Digest,
    Message,
    Norm,
    Pull,
    Rate,
    Reason,
    Weight,
)

__all__ = ["Accept", "Ack", "Ask", "Data", "End", "Miss", "Offer", "Ranges", "Refuse", "Void"]


class Offer(Message, frozen=True):
    """Will you average with me now?"""

    exchange: U63
    """(incarnation << 32 | counter): an initiator never uses the same number twice"""
    schema: Digest
    settings: Digest
    codec: CodecName
    weight: Weight
    pull: Pull
    first: U32
    """the chunk to begin with; it rotates from exchange to exchange"""
    window: Annotated[int, Meta(ge=1, le=256)]
    """chunks that the initiator may have open at once"""
    rate: Rate = float("inf")
    """what the initiator's host wants to spend on an exchange"""


class Accept(Message, frozen=True):
    """Yes: with the finer of the two preferred codecs, and the smaller weight, pull, window and rate."""

    exchange: U63
    codec: CodecName
    weight: Weight
    pull: Pull
    window: Annotated[int, Meta(ge=1, le=256)]
    incarnation: U32 = 0
    """of the sender: the initiator may know only an earlier one"""
    rate: Rate = float("inf")


class Refuse(Message, frozen=True):
    """No."""

    exchange: U63
    reason: Reason
    """busy, done, joining, leaving, idle (no training process), schema, settings, codec, apart, aside (set aside for
    proven faults)"""


class Ranges(Message, frozen=True):
    """Turn 0 of a chunk: the initiator's predicted ranges. Buffers: [ranges]."""

    exchange: U63
    chunk: U32
    incarnation: U32
    """of the responder when it accepted: a repeated message for an earlier incarnation opens no chunk"""


class Data(Message, frozen=True):
    """A later turn of a chunk: codes, checks and escalations. Even turns are the initiator's.

    Buffers: turn 1: [ranges, *codec frames]; later: codec frames.
    """

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=1, le=16)]
    bound: Norm
    """tau: the largest ||delta|| of this chunk that the sender accepts unclipped"""


class Ack(Message, frozen=True):
    """An odd turn, the responder's last: it has mixed the chunk with `share`. Buffers: codec frames."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=1, le=16)]
    share: Weight
    """k: the share of delta left by clipping, min(1, tau / ||delta||)"""


class Ask(Message, frozen=True):
    """The initiator has waited long since it sent `turn`: repeat your answer."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=0, le=16)]


class Miss(Message, frozen=True):
    """Answer to Ask: your `turn` never came, send it again."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=0, le=16)]


class Void(Message, frozen=True):
    """The responder has not mixed this chunk, and never will."""

    exchange: U63
    chunk: U32


class End(Message, frozen=True):
    """The sender opens no more chunks of this exchange."""

    exchange: U63
    mine: bool
    """the sender is the initiator; two peers may use the same number for two exchanges"""
    reason: Reason
    """Of the initiator: settled (every chunk is), lost (it may ask for some later), unwanted (it takes its offer back).
    Of the responder: leaving, joining, round, apart, aside, unknown (it remembers nothing of this exchange)."""
