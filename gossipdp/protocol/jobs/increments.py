"""Jobs of epidemic: publish increments, apply those of others, and settle an epoch by a robust rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gossipdp.protocol.jobs.base import Job
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "Apply",
    "ApplyEpoch",
    "CheckIncrement",
    "EpochApplied",
    "Fingerprint",
    "Fingerprinted",
    "Inspected",
    "MeasureEpoch",
    "Measured",
    "OfIncrement",
    "Publish",
    "Published",
    "Term",
]


@dataclass(frozen=True, slots=True)
class Published:
    """One chunk of an own increment. An empty payload: the progress is not finite, and nothing was changed."""

    payload: Buffer
    """what all peers apply"""
    movement: float = 0.0
    """as in `Inspected`"""
    pseudo_gradient2: float = 0.0
    """squared norm of the pseudo-gradient D"""
    share: float = 1.0
    """share of e that the compressor was offered; below 1 while a guard holds back"""
    fingerprint: int = 0
    """of what was added to the anchor"""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What one chunk of an increment does to the anchor."""

    sound: bool
    """the payload decodes, and lr and weight are allowed; if not, nothing was applied"""
    movement: float = 0.0
    """||alpha p c|| before any bound, the same number at every peer"""
    fingerprint: int = 0
    """of what was added to the anchor, modulo 2^64"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One value a term: `sound` and the unscaled `movement` of an Inspected."""

    sound: tuple[bool, ...]
    movements: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EpochApplied:
    """What a robust rule did to one chunk."""

    counted: tuple[bool, ...]
    """of each contributor: whether the rule used it; the same at every peer"""
    movement: float
    """distance that the rule moved the chunk"""
    fingerprint: int
    """of what was added to the shared anchor, modulo 2^64"""


@dataclass(frozen=True, slots=True)
class Fingerprinted:
    """The fingerprint of one chunk, modulo 2^64."""

    value: int


@dataclass(frozen=True, slots=True)
class Publish(Job[Published]):
    """Put this peer's progress, from the submitted snapshot, into a payload for all peers."""

    chunk: int
    compressor: str
    """by name"""
    lr: float
    """alpha, 0 to 8"""
    beta: float
    """share of the residual that is kept"""
    weight: float
    """p, above 0 and at most 1"""
    applied: int
    """the last slot that is inside the snapshot"""
    seed: int
    bound: float = float("inf")
    """longest movement of this chunk by one message of the epoch, as in Apply"""
    lead: bool = False
    """apply the own payload whole, with alpha 1, to the lead of the anchor until an ApplyEpoch takes it back; if not,
    apply it like any other"""


@dataclass(frozen=True, slots=True)
class CheckIncrement(Job[Inspected]):
    """Say whether Apply would take this payload. Nothing is changed."""

    chunk: int
    compressor: str
    payload: Buffer
    lr: float
    weight: float


@dataclass(frozen=True, slots=True)
class Apply(Job[Inspected]):
    """Apply an increment: a -= alpha p c, pending -= alpha p c.

    Peers that apply the same increments once each, with the same arguments, have the same bits in any order.
    """

    chunk: int
    compressor: str
    payload: Buffer
    lr: float
    weight: float
    bound: float = float("inf")
    """a longer movement is scaled down to it, at every peer"""
    back: bool = False
    """undo exactly what such an Apply did, because its origin was voided"""
    kept: float = 0.0
    """share of c that goes back into the residual of its origin, e += kept c: what the bound takes off"""


@dataclass(frozen=True, slots=True)
class Term:
    """One message of a settled epoch, on one chunk."""

    row: int
    """place of its origin among the contributors of the epoch"""
    compressor: str
    payload: Buffer
    lr: float
    weight: float
    scale: float = 1.0
    """share of its movement that is kept; below 1 if it was too long"""


@dataclass(frozen=True, slots=True)
class MeasureEpoch(Job[Measured]):
    """First pass of a robust rule: the distances between the contributors of a settled epoch, as whole vectors.

    Chunks come in order. Chunk 0 forgets the epoch before.
    """

    chunk: int
    weights: tuple[float, ...]
    """of each contributor, p of all its messages together; 0 if it does not count"""
    terms: tuple[Term, ...]
    """in an order that all peers share"""


@dataclass(frozen=True, slots=True)
class ApplyEpoch(Job[EpochApplied]):
    """Second pass, after all chunks were measured: a -= R(increments), pending likewise."""

    chunk: int
    weights: tuple[float, ...]
    """as in MeasureEpoch"""
    terms: tuple[Term, ...]
    rule: str
    """by name"""
    leads: tuple[tuple[str, Buffer], ...] = ()
    """compressor and payload of what this peer published into the lead of its anchor, to be taken out exactly"""


@dataclass(frozen=True, slots=True)
class Fingerprint(Job[Fingerprinted]):
    """Compute the fingerprint of one chunk of a shared anchor.

    Equal chunks have equal fingerprints. Those of all chunks add up to that of the state, modulo 2^64, and those of
    increments to the change that they made.
    """

    chunk: int


OfIncrement: TypeAlias = CheckIncrement | Apply | MeasureEpoch | ApplyEpoch | Fingerprint
