"""The message by which the two sides of a partition find out that they have trained apart."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gossipdp.protocol.wire.messages.base import U32, U63, Message

__all__ = ["Line", "Lineage"]


class Line(Struct, frozen=True, array_like=True):
    """The name of one side's model, made by one of its members when it met another side."""

    generation: U32
    """counts reunions; 0 for no line"""
    members: U32
    """members of that side; 0: the maker was told that it is apart, so it represents no side"""
    clock: U63
    rounds: U32
    maker: Annotated[bytes, Meta(max_length=32)]
    trains: bool = True
    """a member of that side trained when the line was made; otherwise all of them held copies"""


class Lineage(Message, frozen=True):
    """The line that the sender holds."""

    incarnation: U32
    """of the sender: a message of an earlier life may come late"""
    number: U63
    """counts the sender's messages of this type: one of this life may come late too"""
    life: U32
    """incarnation of the receiver, as the sender knows it; `apart` says nothing of another one"""
    apart: bool
    """the sender holds the receiver apart: it has trained without it for long"""
    reply: bool
    """the sender asks for the receiver's line"""
    lag: U63
    """steps of the network's clock since the sender's last exchange or transfer; huge while it re-syncs"""
    line: Line
