"""What the leader of a group says to the other ranks at step boundaries: whole numbers, all of it.

Nothing here may send one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from gossipdp.training.orders import Drain, Keep, Load, Order, Renew, Snapshot, Tell, Write

__all__ = ["MODES", "Announcement", "Word", "kind_of", "slot_of", "whole_numbers"]

MODES: Final = ("async", "overlap", "sync")
NOTHING, WRITE, LOAD, DRAIN, TELL, WAIT, PART, KEEP, END, RENEW = range(10)
"""kinds. WAIT: wait for the next word (mode sync). PART: leave the network and train on. END: leave and stop."""


class Announcement(msgspec.Struct, frozen=True):
    """What every rank knows of the network, as of the last word."""

    clock: int = 0
    samples: int = 0
    alone: bool = True
    lost_steps: int = 0
    period: int = 1
    """steps from this word to the next: a post costs 0.1 to 0.3 ms, and a drain may be late by a tenth of a round"""


class Word(msgspec.Struct, frozen=True):
    kind: int = NOTHING
    slot: int = 0
    """or, of a moment that is told, its number"""
    spans: int = 0
    session: int = 0
    snapshot: int = 0
    """number of the snapshot to take"""
    snapshot_in: int = 0
    """steps after this word's at which to take it; 0: none"""
    clock: int = 0
    samples: int = 0
    alone: int = 1
    lost_steps: int = 0
    period: int = 1
    mode: int = 0
    """its place in MODES"""
    reset: int = 0
    """of a model that is loaded: the optimizer's state begins anew, too"""


def kind_of(order: Order | None) -> int:
    match order:
        case Write():
            return WRITE
        case Load():
            return LOAD
        case Keep():
            return KEEP
        case Renew():
            return RENEW
        case Drain():
            return DRAIN
        case Tell():
            return TELL
        case Snapshot() | None:
            return NOTHING  # a snapshot is planned ahead, for its step to be the one that is due


def slot_of(order: Order | None) -> int:
    match order:
        case Drain():
            return order.slot
        case Tell():
            return order.number
    return 0


def whole_numbers(numbers: Any) -> Tensor:
    """As words have them: on the CPU, whatever a script's default device is."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")
