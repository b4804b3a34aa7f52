"""Events of state transfer and re-synchronisation."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event

__all__ = ["MomentsProgress", "ResyncBegan", "ResyncEnded", "StateJudged", "TransferProgress"]


@dataclass(frozen=True, slots=True)
class TransferProgress(Event):
    """`chunks` of the model's `of` chunks have come."""

    source: bytes
    chunks: int
    of: int


@dataclass(frozen=True, slots=True)
class MomentsProgress(Event):
    """`chunks` of `of` chunks of the optimizer's moments have come."""

    source: bytes
    chunks: int
    of: int


@dataclass(frozen=True, slots=True)
class StateJudged(Event):
    """A witness has compared the model from `source` with its own anchor. Norms are RMS per parameter."""

    source: bytes
    witness: bytes
    """b"": no witness could, and the model was accepted"""
    plausible: bool
    """`distance` is within `bound`"""
    distance: float
    bound: float


@dataclass(frozen=True, slots=True)
class ResyncBegan(Event):
    """This peer gives up its own state and fetches the network's."""

    reason: str
    """apart (`members` of its side have met `others` that trained without them for long), lag (it has fallen behind),
    diverged (its state is not the one that others agreed on), idle (it has no training process), late (a training
    process waits)"""
    members: int
    others: int
    behind: int = 0
    """steps of the network's clock"""


@dataclass(frozen=True, slots=True)
class ResyncEnded(Event):
    """The fetch is over."""

    reason: str
    source: bytes
    complete: bool
    """this peer holds the model of `source`; False: no source was left, and it holds its own again"""
    seconds: float
