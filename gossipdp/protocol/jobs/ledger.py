"""Jobs on the ledger: the anchor a, the momentum v, the pending corrections and x of the training process."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.jobs.base import Job
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "Allocate",
    "Attach",
    "Bind",
    "Check",
    "Checked",
    "Found",
    "OuterStep",
    "Release",
    "Renew",
    "Restore",
    "Restored",
    "Seal",
    "Sealed",
    "Stepped",
    "Unbind",
    "Widen",
]


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether the values of one chunk are finite, and match their hash where one was given."""

    finite: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """Squared norms on one chunk: of the pseudo-gradient D, and of the anchor's own movement m."""

    pseudo_gradient2: float
    movement2: float


@dataclass(frozen=True, slots=True)
class Sealed:
    """`chunks` lists the dirty chunks of `slot`. When none is dirty, no slot was sealed."""

    slot: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint says of itself."""

    schema: bytes
    """canonical bytes of the schema"""
    clock: int
    rounds: int
    reference: Buffer = b""
    """as in `carried_state`"""
    state: Buffer = b""


@dataclass(frozen=True, slots=True)
class Allocate(Job[None]):
    """Make room for a model of known size. Always the first job."""

    size: int
    """parameters, buffers included"""
    trainable: int
    """parameters before the buffers, which are plain averages (lr 1, momentum 0)"""
    chunk_parameters: int


@dataclass(frozen=True, slots=True)
class Restore(Job[Restored | None]):
    """Load the newest checkpoint of this host; None without one. The driver carries it out."""


@dataclass(frozen=True, slots=True)
class Bind(Job[None]):
    """Use the shared buffers of the newest training process. The driver carries it out."""


@dataclass(frozen=True, slots=True)
class Unbind(Job[None]):
    """There is no training process any more. The driver carries it out."""


@dataclass(frozen=True, slots=True)
class Renew(Job[None]):
    """Let partners move this peer by a full round's bound again, because the training process makes no rounds."""


@dataclass(frozen=True, slots=True)
class Widen(Job[None]):
    """Bound the next exchanges by the plausible distance of two replicas, because no outer step follows."""

    share: float
    """of the plausible distance that an exchange may bring"""


@dataclass(frozen=True, slots=True)
class Found(Job[Checked]):
    """a_c := x_c: take the model of the training process as the network's first."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Attach(Job[None]):
    """x_c := a_c, without corrections of c: a new session starts from the anchor."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Check(Job[Checked]):
    """Check that the submitted snapshot is finite on this chunk."""

    chunk: int


@dataclass(frozen=True, slots=True)
class OuterStep(Job[Stepped]):
    """The outer step on one chunk, from the submitted snapshot. With momentum 0, v becomes 0."""

    chunk: int
    lr: float
    momentum: float
    applied: int
    """the last slot that is inside the snapshot"""
    part: float = 1.0
    """share of a usual round's movement that this round makes, if all its steps go one way"""


@dataclass(frozen=True, slots=True)
class Seal(Job[Sealed]):
    """Close the open slot for the training process to apply, and open the next in the buffer of snapshots.

    The driver carries it out once no snapshot stands in that buffer or is being written there. Later jobs may overtake
    it.
    """


@dataclass(frozen=True, slots=True)
class Release(Job[None]):
    """Free the buffer of a slot that the training process has applied."""

    slot: int
