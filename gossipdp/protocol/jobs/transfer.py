"""Jobs of state transfer: freeze and adopt a model, judge one, and what travels beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.jobs.base import Job
from gossipdp.protocol.jobs.ledger import Checked
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "RUN",
    "Adopt",
    "CheckMoments",
    "CheckPiece",
    "Compare",
    "Compared",
    "Conclude",
    "Freeze",
    "Frozen",
    "HashPiece",
    "Keep",
    "Resync",
    "Sample",
    "Sampled",
]

RUN: Final = 256
"""parameters of one run of a Sample"""


@dataclass(frozen=True, slots=True)
class Frozen:
    """One chunk or piece as it travels, and its 16-byte hash."""

    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Sampled:
    """Values of the anchor. Distances are RMS per parameter, NaN while unknown."""

    payload: Buffer
    """fp32 values, run after run"""
    distance: float
    """of two anchors at the last exchanges of these chunks"""
    step: float
    """the longest recent movement of the anchor in one round"""


@dataclass(frozen=True, slots=True)
class Compared:
    """RMS per parameter; NaN if there was nothing to compare."""

    distance: float
    """of the payload's values and the anchor's"""
    scale: float
    """of the payload's values"""


@dataclass(frozen=True, slots=True)
class Freeze(Job[Frozen]):
    """Copy one chunk of the anchor, with its hash. Parameters are bfloat16; buffers and shared anchors are exact."""

    chunk: int


@dataclass(frozen=True, slots=True)
class HashPiece(Job[Frozen]):
    """Hash a piece of what travels beside the vector (`carried_state`), as chunk number `chunk`."""

    chunk: int
    payload: Buffer


@dataclass(frozen=True, slots=True)
class CheckPiece(Job[Checked]):
    """Check the hash of such a piece, chunk number `chunk`. `finite` is False if it is refused."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Adopt(Job[Checked]):
    """a_c := payload, if its hash is right and it is finite. `finite` is False if it is refused."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Resync(Job[Checked]):
    """As Adopt, on a peer that trains: add payload - a_c to a_c and to pending. x follows at the next drain."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Conclude(Job[None]):
    """End a fetch by Resync. With `back`, what it added to a_c and pending is taken out again, because no peer has the
    rest; only steps made since then remain."""

    chunk: int
    back: bool


@dataclass(frozen=True, slots=True)
class CheckMoments(Job[Frozen | None]):
    """Check that `payload` has this hash and holds both moments of `size` parameters. None if it is refused."""

    chunk: int
    size: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Keep(Job[None]):
    """Save a checkpoint before this peer follows others. The driver carries it out, perhaps after later jobs."""

    reason: str
    """apart (the operator decides about the checkpoint) or lag"""


@dataclass(frozen=True, slots=True)
class Sample(Job[Sampled]):
    """Copy RUN parameters of the anchor from each start on, fewer where the model ends."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compare(Job[Compared | None]):
    """Measure the distance between the values of `payload` and the anchor; None if the payload is malformed."""

    runs: tuple[tuple[int, int, int], ...]
    """(place in the payload, first parameter, length) of each run to compare"""
    size: int
    """values that the payload has to hold"""
    payload: Buffer
