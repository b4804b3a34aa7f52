"""Events of `epidemic` that stay inside the protocol: rumours that arrive or lose their standing, and their epochs."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events import Event
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import Rumour

__all__ = ["EpochClosed", "EpochGathered", "RumourReceived", "RumourVoided"]


@dataclass(frozen=True, slots=True)
class RumourReceived(Event):
    """A rumour is here, whole and verified; once each. An own one comes only if the state was replaced by another's
    without it (`Rumours.adopt`)."""

    name: bytes
    rumour: Rumour
    parts: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class RumourVoided(Event):
    """`origin` is proven to have signed what nobody may sign in `epoch`: nothing of it counts, and what was received is
    to be taken back. `received` are those rumours with their parts; without parts if they are not kept any more, so
    that only a state fetched anew is sound."""

    origin: bytes
    epoch: int
    received: tuple[tuple[Rumour, tuple[Buffer, ...]], ...]


@dataclass(frozen=True, slots=True)
class EpochClosed(Event):
    """The clock has passed `epoch` by its grace: its samples weigh later rumours. Repair may still add to it."""

    epoch: int
    digest: bytes
    rumours: int
    samples: int
    origins: int = 1
    """whose rumours they are"""
    middle: int = 0
    """samples of the middle one of these; 0: nobody made any"""


@dataclass(frozen=True, slots=True)
class EpochGathered(Event):
    """`epoch` is about to be settled with these rumours and their parts, in an order that all peers share. What could
    not be had is without parts."""

    epoch: int
    rumours: tuple[tuple[Rumour, tuple[Buffer, ...]], ...]
