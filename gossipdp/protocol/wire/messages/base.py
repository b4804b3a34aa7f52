"""What all messages share: limits, field types, the base class, and how ids and foreign text are shown."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = [
    "LARGEST_LOSS",
    "MAX_BUFFER",
    "MAX_FRAMES",
    "MAX_HEADER",
    "OLDEST_VERSION",
    "PRINTABLE",
    "PROTOCOL_VERSION",
    "U32",
    "U63",
    "UNSIGNED",
    "Address",
    "CodecName",
    "Digest",
    "Lane",
    "Loss",
    "Message",
    "Name",
    "Norm",
    "PeerId",
    "Place",
    "Pull",
    "Rate",
    "Reason",
    "Signature",
    "StepRate",
    "Weight",
    "printable",
    "short",
]

PROTOCOL_VERSION: Final = 4
"""the newest version that this peer speaks"""
OLDEST_VERSION: Final = 3
"""the oldest version that this peer speaks: one less, so that a network changes version host by host"""

MAX_HEADER: Final = 4096
"""bytes of one header frame"""
MAX_FRAMES: Final = 64
"""frames of one message, header included"""
MAX_BUFFER: Final = 4 << 20
"""bytes of one raw buffer"""

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
PeerId = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The peer's Ed25519 public key."""
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
PRINTABLE: Final = (
    r"\A[^\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*\Z"
)
"""Text without control and format characters: text of another peer can change neither a line nor a terminal."""
UNSIGNED: Final = bytes(64)
"""placeholder for a signature that is not made yet; it verifies for no key"""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Name = Annotated[str, Meta(max_length=48, pattern=PRINTABLE)]
MAX_ADDRESS: Final = 80
"""characters of ``host:port``"""
Address = Annotated[str, Meta(max_length=MAX_ADDRESS, pattern=PRINTABLE)]
"""``host:port``, or "" for a peer that can only dial out."""
Place = Annotated[str, Meta(min_length=1, max_length=MAX_ADDRESS, pattern=PRINTABLE)]
"""``host:port``"""
Reason = Annotated[str, Meta(max_length=80, pattern=PRINTABLE)]
CodecName = Annotated[str, Meta(max_length=16, pattern=PRINTABLE)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0)]
Pull = Annotated[float, Meta(ge=0.0, le=100.0)]
"""kappa / alpha, the movement of v against that of a; or 0"""
Rate = Annotated[float, Meta(ge=125e3)]
"""bytes a second each way, at least 1 Mbit/s; infinity: no limit"""
StepRate = Annotated[float, Meta(ge=0.0)]
"""steps a second"""
LARGEST_LOSS: Final = 1e30
Loss = Annotated[float, Meta(ge=-LARGEST_LOSS, le=LARGEST_LOSS)]
"""a loss as a training script reports it; NaN fails the comparison"""
Norm = Annotated[float, Meta(ge=0.0)]
"""A non-negative norm. Infinity means that no bound is known yet. NaN fails the comparison."""


class Lane(enum.IntEnum):
    """The two connections of a link. A payload on DATA never delays a ping on CONTROL."""

    CONTROL = 0
    DATA = 1


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


def printable(text: str) -> str:
    """`text`, which another peer may have written, without characters that could change a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def short(peer: bytes) -> str:
    """Eight hexadecimal digits of a peer id, as logs and tables show it."""
    return peer[:4].hex()
