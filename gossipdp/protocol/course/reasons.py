"""Why a peer gives up its model for the network's."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["SPARE", "Reason"]


class Reason(StrEnum):
    """The value stands in events, in the status and in the checkpoint's job."""

    APART = "apart"
    """Its side has met a greater one after a long partition."""
    LAG = "lag"
    """It was cut off and has fallen behind."""
    IDLE = "idle"
    """It has no training process, and its model is old."""
    LATE = "late"
    """A training process waits, and the model here is old."""


SPARE: Final = (Reason.IDLE, Reason.LATE)
"""Reasons of a peer that does not train."""
