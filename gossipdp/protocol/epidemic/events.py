"""Events of `epidemic` that stay inside the protocol: increments that arrive or become void, and their epochs."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events import Event
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["EpochClosed", "EpochGathered", "RumourReceived", "RumourVoided"]


@dataclass(frozen=True, slots=True)
class RumourReceived(Event):
    """An increment is complete and verified. Emitted once for each.

    An own increment comes only if the state was replaced by one without it (`Broadcast.adopt`).
    """

    name: bytes
    rumour: Rumour
    parts: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class RumourVoided(Event):
    """`origin` provably signed contradicting headers in `epoch`. None of its increments counts; undo those received."""

    origin: bytes
    epoch: int
    received: tuple[tuple[Rumour, tuple[Buffer, ...]], ...]
    """the increments with their parts. Without parts if they are no longer stored; then the state must be fetched
    anew"""


@dataclass(frozen=True, slots=True)
class EpochClosed(Event):
    """The clock is past `epoch` by its grace. Its samples weigh later increments. Repair may still add to it."""

    epoch: int
    digest: bytes
    rumours: int
    samples: int
    origins: int = 1
    """number of origins of these increments"""
    middle: int = 0
    """samples of the middle origin; 0 if no origin made any"""


@dataclass(frozen=True, slots=True)
class EpochGathered(Event):
    """`epoch` is about to settle with these increments, in an order that all peers share.

    An increment whose payload could not be fetched has no parts.
    """

    epoch: int
    rumours: tuple[tuple[Rumour, tuple[Buffer, ...]], ...]
