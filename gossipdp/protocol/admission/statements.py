"""What the operator and peers sign: decisions and receipts. No key may stand here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gossipdp.protocol.wire.messages import Decision, Receipt, Verdict

__all__ = ["NETWORK", "SECRET", "fits", "receipt", "received", "signed", "stated"]

NETWORK: Final = b""
"""subject of the decision about the network itself"""
SECRET: Final = b"secret"
"""subject of the decision about the network's secret"""
_OF_INVITES: Final = (Verdict.INVITED, Verdict.REVOKED)
_OF_KEYS: Final = (Verdict.NONE, Verdict.BANNED, *_OF_INVITES)
_DECISION: Final = b"gossipdp decision 1\0"
_RECEIPT: Final = b"gossipdp receipt 1\0"
_pack = msgspec.msgpack.Encoder().encode


def signed(decision: Decision, network: str, sign: Callable[[bytes], bytes]) -> Decision:
    """`decision` with the operator's signature, valid in networks of this name alone."""
    return replace(decision, signature=sign(stated(decision, network)))


def stated(decision: Decision, network: str) -> bytes:
    """What the operator signs."""
    about = (decision.subject, decision.name, decision.reason, decision.time, decision.allowed)
    gives = (decision.invite, decision.secret) if decision.invite or decision.secret else ()
    return _DECISION + _pack((network, decision.number, int(decision.verdict), *about, *gives))


def receipt(decision: Decision, peer: bytes, network: str, sign: Callable[[bytes], bytes]) -> Receipt:
    """The receipt of `peer` for what `decision` gives, signed with the invite's key, or with the peer's own."""
    made = Receipt(decision.subject, decision.number, peer)
    return replace(made, signature=sign(received(made, network)))


def received(made: Receipt, network: str) -> bytes:
    """What the invite's key, or the peer, signs."""
    return _RECEIPT + _pack((network, made.subject, made.number, made.peer))


def fits(decision: Decision) -> bool:
    """Whether a decision says something of its kind of subject, and has what that takes."""
    verdict, secret = decision.verdict, decision.secret
    if (decision.invite is None) == (verdict in _OF_INVITES) or (secret is None) == (verdict is Verdict.RENEWED):
        return False
    if decision.subject == SECRET:
        return secret is not None and len(secret.boxes) == len(decision.allowed)
    if decision.subject == NETWORK:
        return verdict in (Verdict.OPEN, Verdict.CLOSED)
    return len(decision.subject) == 32 and verdict in _OF_KEYS
