"""A model that has come to a peer, and where it came from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossipdp.protocol.carried_state import NOTHING, Carried

__all__ = ["Arrived", "Origin"]


class Origin(enum.StrEnum):
    """Where a model came from."""

    FOUNDED = "founded"
    """this peer's first training process: it is the network's first model"""
    TAKEN_OVER = "taken over"
    """this peer's training process, which has outlived its daemon"""
    RESTORED = "restored"
    """this peer's checkpoint"""
    RECEIVED = "received"
    """another member"""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A model besides its vectors, as it came."""

    origin: Origin
    schema: bytes
    clock: int
    """the network's clock in steps, when the model was current"""
    rounds: int
    carried: Carried = NOTHING
    """what goes with the model and is not averaged"""
    begun: int = 0
    """the network's clock when the last source began to send; some parts of the model may be older"""
    giver: bytes = b""
    """the last source of a received model"""

    @property
    def own(self) -> bool:
        """The model was this peer's before its start."""
        return self.origin in (Origin.RESTORED, Origin.TAKEN_OVER)
