"""What a member says of itself, as bytes to sign, and the check of a signature.

A member signs two things: its own record and its own progress report. A record may reach a peer with a suspicion or a
failure that other members have added. The signature then still covers the member's own word: identity, name, address,
incarnation, refutation, versions, and whether it leaves. So another member can invent no death by leaving, no restart,
no address and no clock. It can only doubt, and the member itself refutes a doubt.

Who checks, when, and what follows from a bad signature is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gossipdp.protocol.wire.messages import Member, Progress, State

__all__ = ["Signer", "same_word"]

_MEMBER: Final = b"gossipdp member 2\0"
_PROGRESS: Final = b"gossipdp progress 2\0"
_pack = msgspec.msgpack.Encoder().encode


class Signer:
    """Signs this peer's own word and checks the word of others.

    Args:
        sign: the signature (64 bytes) of this peer's key over some bytes.
        verify: whether a signature over some bytes is that of a peer: `verify(peer id, data, signature)`.
    """

    def __init__(self, sign: Callable[[bytes], bytes], verify: Callable[[bytes, bytes, bytes], bool]) -> None:
        self._sign, self._verify = sign, verify

    def sign_member(self, me: Member) -> Member:
        """This peer's own record with its signature."""
        return replace(me, signature=self._sign(_member_word(me)))

    def sign_progress(self, mine: Progress) -> Progress:
        """This peer's own report with its signature."""
        return replace(mine, signature=self._sign(_progress_word(mine)))

    def verify_member(self, record: Member) -> bool:
        """Whether the member of `record` signed the word in it."""
        return self._verify(record.id, _member_word(record), record.signature)

    def verify_progress(self, report: Progress) -> bool:
        """Whether the peer of `report` signed it."""
        return self._verify(report.id, _progress_word(report), report.signature)


def same_word(one: Member, other: Member) -> bool:
    """Whether two records of one member hold the same signed word. If one is genuine, so is the other."""
    return one.signature == other.signature and _word(one) == _word(other)


def _word(record: Member) -> tuple[object, ...]:
    leaves = record.state == State.LEFT
    text = (record.name, record.address, record.software)
    return (record.id, *text, record.incarnation, record.refutation, record.version, leaves)


def _member_word(record: Member) -> bytes:
    return _MEMBER + _pack(_word(record))


def _progress_word(report: Progress) -> bytes:
    return _PROGRESS + _pack((report.id, report.clock, report.steps, report.samples, report.rounds))
