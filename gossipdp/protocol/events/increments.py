"""Events of epidemic: increments and epochs."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event

__all__ = [
    "EpochDiverged",
    "EpochFingerprinted",
    "EpochJudged",
    "EpochSettled",
    "IncrementApplied",
    "IncrementPublished",
]


@dataclass(frozen=True, slots=True)
class IncrementPublished(Event):
    """This peer's progress is on its way to all members."""

    size: int
    """bytes"""
    weight: float
    """p, its share"""
    share: float
    """least share of the residual, over all chunks, that the compressor was offered"""


@dataclass(frozen=True, slots=True)
class IncrementApplied(Event):
    """The increment of another peer is in the anchor. With a robust rule: it was judged."""

    origin: bytes
    size: int
    weight: float
    hops: int
    movement: float
    """movement of the anchor, RMS per parameter; with a robust rule, that of this increment alone"""
    compressor: str
    """by name"""
    scale: float = 1.0
    """below 1: the increment was too long, and every peer scaled it down by this factor"""


@dataclass(frozen=True, slots=True)
class EpochSettled(Event):
    """The set of rumours of `epoch` never changes again at this peer."""

    epoch: int
    digest: bytes
    rumours: int
    samples: int


@dataclass(frozen=True, slots=True)
class EpochJudged(Event):
    """The result of a robust rule over the increments of an epoch is in the anchor."""

    epoch: int
    contributors: int
    counted: int
    """contributors that the rule used"""
    movement: float
    """movement of the anchor, RMS per parameter"""


@dataclass(frozen=True, slots=True)
class EpochDiverged(Event):
    """More peers settled `epoch` with one other set of rumours than with this one. This peer must fetch their state."""

    epoch: int
    agree: int
    """peers with this peer's set, itself included"""
    differ: int
    """peers with the other set"""
    holders: tuple[bytes, ...] = ()
    """known peers with the other set"""


@dataclass(frozen=True, slots=True)
class EpochFingerprinted(Event):
    """Fingerprint of this peer's anchor with all rumours up to the settled `epoch`, and no later ones.

    Peers that settled the same sets have the same fingerprint, if their replicas are equal.
    """

    epoch: int
    fingerprint: int
