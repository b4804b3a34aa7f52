"""Decisions and receipts as the raw buffer of a message. What is read from it is checked against types and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_HOLDERS, Decision, Receipt

__all__ = ["MAX_RECEIPTS", "MAX_SUBJECTS", "pack", "unpack"]

MAX_SUBJECTS: Final = 4096
"""peers about which decisions are kept; decisions about further ones are refused"""
MAX_RECEIPTS: Final = 1024
"""hosts that invites have let in, of which receipts are kept"""
_Decisions = Annotated[tuple[Decision, ...], Meta(max_length=MAX_SUBJECTS + 2)]
_Receipts = Annotated[tuple[Receipt, ...], Meta(max_length=MAX_RECEIPTS + MAX_HOLDERS)]
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[_Decisions, _Receipts]] = msgspec.msgpack.Decoder(tuple[_Decisions, _Receipts])


def pack(decisions: Sequence[Decision], receipts: Sequence[Receipt] = ()) -> bytes:
    """The buffer with these decisions and receipts. A full register takes at most 4 MB."""
    return _encoder.encode((decisions, receipts))


def unpack(buffer: Buffer) -> tuple[tuple[Decision, ...], tuple[Receipt, ...]]:
    """The decisions and receipts in a buffer. Raises RemoteProtocolError: it holds anything else."""
    try:
        return _decoder.decode(buffer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"Decisions: {error!s:.120}") from None
