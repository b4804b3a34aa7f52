"""What the leader of a group tells the other ranks at step boundaries: whole numbers only.

Nothing here sends one.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from gossipdp.training.dialogue import Mode
from gossipdp.training.orders import Drain, Keep, Load, LoadState, Order, SendMoments, Snapshot, Write

__all__ = ["MODES", "Announcement", "Kind", "NetworkStatus", "kind_of", "slot_of"]

MODES: Final[tuple[Mode, ...]] = ("async", "overlap", "sync")


class Kind(enum.IntEnum):
    """What all ranks do when they read an announcement."""

    NOTHING = 0
    WRITE = 1
    LOAD = 2
    DRAIN = 3
    SEND_MOMENTS = 4
    WAIT = 5
    """wait for the next announcement (mode sync)"""
    LEAVE = 6
    """leave the network and train on"""
    KEEP = 7
    STOP = 8
    """leave the network and stop training"""
    LOAD_STATE = 9


class NetworkStatus(msgspec.Struct, frozen=True):
    """What every rank knows of the network, as of the last announcement."""

    clock: int = 0
    """steps"""
    samples: int = 0
    alone: bool = True
    lost_steps: int = 0


class Announcement(msgspec.Struct, frozen=True):
    """One announcement, as it travels: one int64 per field, in this order."""

    kind: int = Kind.NOTHING
    slot: int = 0
    """number of the slot to drain, or of the moments to send"""
    spans: int = 0
    """spans of that slot; they follow in a broadcast of their own"""
    session: int = 0
    snapshot: int = 0
    """number of the snapshot to take"""
    snapshot_in: int = 0
    """steps from this announcement to that snapshot; 0: none is planned"""
    clock: int = 0
    samples: int = 0
    alone: int = 1
    lost_steps: int = 0
    period: int = 1
    """steps to the next announcement; one costs 0.1 to 0.3 ms, and a drain may be late by a tenth of a round"""
    mode: int = 0
    """index in MODES"""
    reset: int = 0
    """with LOAD: the optimizer's state begins anew, too"""

    @property
    def status(self) -> NetworkStatus:
        return NetworkStatus(self.clock, self.samples, bool(self.alone), self.lost_steps)


def kind_of(order: Order | None) -> Kind:
    """What announces `order`."""
    match order:
        case Write():
            return Kind.WRITE
        case Load():
            return Kind.LOAD
        case Keep():
            return Kind.KEEP
        case LoadState():
            return Kind.LOAD_STATE
        case Drain():
            return Kind.DRAIN
        case SendMoments():
            return Kind.SEND_MOMENTS
        case Snapshot() | None:
            return Kind.NOTHING  # a snapshot is planned ahead, so that its step is the one that is due


def slot_of(order: Order | None) -> int:
    """The slot to drain, or the number of the moments to send; 0 for other orders."""
    match order:
        case Drain():
            return order.slot
        case SendMoments():
            return order.number
    return 0
