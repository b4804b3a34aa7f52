"""Events of the end of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossipdp.protocol.events.base import Event
from gossipdp.protocol.wire.messages import Phase

__all__ = ["Closeness", "FinishBegan", "FinishPhase", "Finished"]


class Closeness(NamedTuple):
    """How close the states of peers are whose training is over. Distances are RMS per parameter; NaN: unknown."""

    over: bool
    """this peer seeks no more exchanges of its own, because it `agrees` or does not come closer"""
    agrees: bool
    """it holds the mean of all"""
    before: float
    """usual distance of two states at the end of the training"""
    now: float
    """distance that was measured last"""
    exchanges: int
    """made since the training ended"""
    outliers: tuple[bytes, ...] = ()
    """members whose state was too far away to be averaged with this peer's"""


@dataclass(frozen=True, slots=True)
class FinishBegan(Event):
    """The run of this peer ends. The driver ends its training process after one more snapshot."""

    by: bytes
    """the member that asked for it; b"" for this host"""
    calls: bool
    """all members are asked to finish"""


@dataclass(frozen=True, slots=True)
class FinishPhase(Event):
    """The end of this peer's run has come to `phase`."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """This peer holds the final model, as far as there is one. The driver saves it and leaves."""

    closers: tuple[bytes, ...]
    """members that came together, this peer included; empty if it has no model"""
    closeness: Closeness
