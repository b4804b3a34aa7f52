"""Decisions as the raw buffer of a message. What is read from it is checked against types and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Decision

__all__ = ["MAX_SUBJECTS", "pack", "unpack"]

MAX_SUBJECTS: Final = 4096
"""peers about which decisions are kept; decisions about further ones are refused"""
_Packed = Annotated[tuple[Decision, ...], Meta(max_length=MAX_SUBJECTS + 1)]
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[Decision, ...]] = msgspec.msgpack.Decoder(_Packed)


def pack(decisions: Sequence[Decision]) -> bytes:
    """The buffer with these decisions. A full register takes at most 2.8 MB."""
    return _encoder.encode(decisions)


def unpack(buffer: Buffer) -> tuple[Decision, ...]:
    """The decisions in a buffer. Raises RemoteProtocolError: it holds anything else."""
    try:
        return _decoder.decode(buffer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"Decisions: {error!s:.120}") from None
