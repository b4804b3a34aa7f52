"""Jobs of the pairwise exchange: one chunk is encoded, checked and mixed, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gossipdp.protocol.jobs.base import ChunkKey, Job
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["Answer", "Begin", "Decode", "DecodeAndMix", "Drop", "Mix", "OfExchange", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one turn of a chunk."""

    buffers: tuple[Buffer, ...] = ()
    """what to send to the partner now; empty if the partner lacks nothing"""
    complete: bool = False
    """every block of delta is exact"""
    mixed: bool = False
    """delta has been applied with `share`"""
    share: float = 1.0
    bound: float = float("inf")
    """tau of this peer"""
    distance2: float = 0.0
    """||delta||^2 once complete; 0 of buffers"""
    blocks: int = 0
    """blocks of parameters, once complete"""
    escalated: int = 0
    """blocks that needed more than the first stage, once complete"""
    escalation_bytes: int = 0
    """bytes received past the first stage, once complete"""
    refused: str = ""
    """why the partner's buffers were refused: payload, nan, share; "" if they were not"""


@dataclass(frozen=True, slots=True)
class Begin(Job[Turn]):
    """The initiator opens a chunk. The turn holds [ranges]."""

    key: ChunkKey
    codec: str
    lower: bool
    """this peer's id is the lower of the two"""


@dataclass(frozen=True, slots=True)
class Answer(Job[Turn]):
    """The responder opens a chunk knowing the initiator's ranges. The turn holds [ranges, *codes]."""

    key: ChunkKey
    codec: str
    lower: bool
    ranges: Buffer


@dataclass(frozen=True, slots=True)
class Decode(Job[Turn]):
    """The initiator takes a turn in."""

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    first: bool
    """`buffers` starts with the responder's ranges"""


@dataclass(frozen=True, slots=True)
class DecodeAndMix(Job[Turn]):
    """The responder takes a turn in, and mixes at once if every block has passed its check."""

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    bound: float
    """tau of the initiator"""
    weight: float
    """gamma"""
    pull: float
    """kappa / alpha: v moves by -pull times the movement of a"""


@dataclass(frozen=True, slots=True)
class Mix(Job[Turn]):
    """The initiator takes in its last buffers, then mixes with the share that the responder used."""

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    share: float
    weight: float
    pull: float


@dataclass(frozen=True, slots=True)
class Drop(Job[None]):
    """Forget the open chunks `keys`. Unmixed chunks stay unmixed."""

    keys: tuple[ChunkKey, ...]


OfExchange: TypeAlias = Begin | Answer | Decode | DecodeAndMix | Mix
