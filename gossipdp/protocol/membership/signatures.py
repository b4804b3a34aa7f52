"""The statements that a member signs, as bytes, and the check of a signature.

A member signs its own record and its own progress report. A record may reach a peer with a suspicion or a failure that
other members have added. The signature still covers the member's own *statement*: identity, name, addresses,
incarnation, refutation, versions, whether it leaves, and how its run ends. So another member can invent no goodbye, no
restart, no address, no clock and no end of the run. It can only doubt, and the member itself refutes a doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gossipdp.protocol.wire.messages import Member, Progress, State

__all__ = ["Signer", "same_statement"]

_MEMBER: Final = b"gossipdp member 3\0"
_PROGRESS: Final = b"gossipdp progress 3\0"
_pack = msgspec.msgpack.Encoder().encode


class Signer:
    """Signs this peer's statements, and checks those of other members.

    Args:
        sign: the signature (64 bytes) of this peer's key over some bytes.
        verify: whether a signature over some bytes is that of a peer: `verify(peer id, data, signature)`.
    """

    def __init__(self, sign: Callable[[bytes], bytes], verify: Callable[[bytes, bytes, bytes], bool]) -> None:
        self._sign, self._verify = sign, verify

    def sign_member(self, me: Member) -> Member:
        """This peer's own record with its signature."""
        return replace(me, signature=self._sign(_member_statement(me)))

    def sign_progress(self, mine: Progress) -> Progress:
        """This peer's own report with its signature."""
        return replace(mine, signature=self._sign(_progress_statement(mine)))

    def verify_member(self, record: Member) -> bool:
        """Whether the member of `record` signed the statement in it."""
        return self._verify(record.id, _member_statement(record), record.signature)

    def verify_progress(self, report: Progress) -> bool:
        """Whether the peer of `report` signed it."""
        return self._verify(report.id, _progress_statement(report), report.signature)

    def genuine(self, record: Member, known: Member | None) -> bool:
        """Whether the member of `record` signed it. A statement that is believed already needs no check."""
        return (known is not None and same_statement(record, known)) or self.verify_member(record)


def same_statement(one: Member, other: Member) -> bool:
    """Whether two records of one member hold the same signed statement. If one is genuine, so is the other."""
    return one.signature == other.signature and _statement(one) == _statement(other)


def _statement(record: Member) -> tuple[object, ...]:
    leaves = record.state == State.LEFT
    text = (record.name, record.address, record.software)
    counts = (record.incarnation, record.refutation, record.version, int(record.phase))
    return (record.id, *text, record.others, *counts, leaves, record.calls)


def _member_statement(record: Member) -> bytes:
    return _MEMBER + _pack(_statement(record))


def _progress_statement(report: Progress) -> bytes:
    counts = (report.clock, report.steps, report.samples, report.rounds)
    return _PROGRESS + _pack((report.id, *counts, report.loss, report.eval_loss))
