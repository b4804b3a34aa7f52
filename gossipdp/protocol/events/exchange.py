"""Events of pairwise exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event

__all__ = ["ChunksInDoubt", "ExchangeEnded", "ExchangeStarted", "OfferRefused"]


@dataclass(frozen=True, slots=True)
class ExchangeStarted(Event):
    """An exchange with `partner` began."""

    partner: bytes
    exchange: int
    initiator: bool
    codec: str


@dataclass(frozen=True, slots=True)
class ExchangeEnded(Event):
    """An exchange ended. Bytes count whole frames."""

    partner: bytes
    exchange: int
    initiator: bool
    result: str
    """done, cut (ended early at a chunk boundary), slow (cut, because its chunks took far longer than usual), lost (the
    partner went silent)"""
    codec: str
    chunks: int
    of: int
    distance: float
    """RMS of a_i - a_j per parameter, over the mixed chunks"""
    clipped: int
    blocks: int
    escalated: int
    escalation_bytes: int
    sent: int
    received: int
    duration: float
    """seconds"""


@dataclass(frozen=True, slots=True)
class OfferRefused(Event):
    """A member refused the offer of an exchange."""

    partner: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ChunksInDoubt(Event):
    """The partner died before it said whether it had mixed these chunks. They are counted, and never guessed."""

    partner: bytes
    count: int
