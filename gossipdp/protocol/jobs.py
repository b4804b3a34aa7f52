"""Vector work, described as data: what the protocol asks of the threads that own the vectors.

The protocol never touches a vector. It asks for a job on one chunk (at most 50 ms) and gets the result by
`Peer.job_done`. Jobs on one chunk run in the order asked, and any other job runs alone, so nothing needs a lock.
Results come in the order asked. `gossipdp.algorithms` executes jobs, and a driver carries them there and
back. Buffers in jobs and results are opaque here. Every job class names the type of its result: ``Check`` is a
``Job[Checked]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar, cast

from gossipdp.protocol.causes import Fault
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "RUN",
    "Adopt",
    "Allocate",
    "Answer",
    "Attach",
    "Begin",
    "Bind",
    "Check",
    "CheckMoments",
    "CheckPiece",
    "Checked",
    "ChunkCompared",
    "ChunkKey",
    "Coding",
    "Compare",
    "Compared",
    "Conclude",
    "Decode",
    "DecodeAndMix",
    "Drop",
    "Found",
    "Freeze",
    "Frozen",
    "HashPiece",
    "Job",
    "Keep",
    "Mix",
    "Mixing",
    "OfExchange",
    "OuterStep",
    "Release",
    "Renew",
    "Replaced",
    "Rest",
    "Restore",
    "Restored",
    "Resync",
    "Sample",
    "Sampled",
    "Seal",
    "Sealed",
    "Stepped",
    "Turn",
    "Unbind",
    "Widen",
]

Result = TypeVar("Result", covariant=True)


class ChunkKey(NamedTuple):
    """One chunk of one exchange. No other chunk in the network ever has the same key."""

    initiator: bytes
    exchange: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """Base of all jobs; `Result` is the type of what carrying one out gives."""

    def typed(self, result: object) -> Result:
        """`result`, which this job gave, as the type that the job declares."""
        return cast("Result", result)


# -- the ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether the values of one chunk are finite, and match their hash where one was given."""

    finite: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """Squared norms on one chunk: of the pseudo-gradient D, and of the anchor's own movement m."""

    pseudo_gradient2: float
    movement2: float
    gain: float = 0.0
    """how far the chunk's rounds swing (algorithms section 3b)"""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Squared norms on one chunk: of the anchor's difference from the x that it replaces, and of the anchor."""

    difference2: float
    anchor2: float


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
    tensors: tuple[int, ...] = ()
    """first parameter of each tensor, as of `Schema.tensors`"""


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
class Attach(Job[Replaced]):
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
    made: float = 1.0
    """share of this peer's own round that was made"""


@dataclass(frozen=True, slots=True)
class Rest(Job[None]):
    """a_c += alpha (mu + 1 - made) v_c: take the lookahead out, because no outer step follows."""

    chunk: int


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


# -- exchanges -----------------------------------------------------------------------------------------------------


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
    seen: bool = True
    """the grid was fine enough to show a usual difference"""
    blocks: int = 0
    """blocks of parameters, once complete"""
    escalated: int = 0
    """blocks that needed more than the first stage, once complete"""
    escalation_bytes: int = 0
    """bytes received past the first stage, once complete"""
    refused: Fault | None = None
    """why the partner's buffers were refused; None if they were not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How the two sides of an exchange encode a chunk."""

    codec: str
    lower: bool
    """this peer's id is the lower of the two"""
    within: bool = True
    """no block spans two tensors; False with a partner of protocol version 4 or less"""
    limited: bool = True
    """the smaller of both ranges limits the grid of a block; False with a partner of protocol version 5 or less"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How far a chunk moves (algorithms section 3)."""

    weight: float
    """gamma: share of the difference that moves each anchor"""
    pull: float
    """kappa / alpha: v moves by -pull times the movement of a; 0: v stays"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfExchange(Job[Turn]):
    """Base of the jobs on one chunk of one exchange."""

    key: ChunkKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(OfExchange):
    """The initiator opens a chunk. The turn holds [ranges]."""

    coding: Coding


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(OfExchange):
    """The responder opens a chunk knowing the initiator's ranges. The turn holds [ranges, *codes]."""

    coding: Coding
    ranges: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode(OfExchange):
    """The initiator takes a turn in."""

    buffers: tuple[Buffer, ...]
    first: bool
    """`buffers` starts with the responder's ranges"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAndMix(OfExchange):
    """The responder takes a turn in, and mixes at once if every block has passed its check."""

    buffers: tuple[Buffer, ...]
    bound: float
    """tau of the initiator"""
    mixing: Mixing


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix(OfExchange):
    """The initiator takes in its last buffers, then mixes with the share that the responder used."""

    buffers: tuple[Buffer, ...]
    share: float
    mixing: Mixing


@dataclass(frozen=True, slots=True)
class Drop(Job[None]):
    """Forget the open chunks `keys`. Unmixed chunks stay unmixed."""

    keys: tuple[ChunkKey, ...]


# -- transfers -----------------------------------------------------------------------------------------------------


RUN: Final = 256
"""parameters of one run of a Sample"""
SUMS: Final = 8
"""sums of the sketch of a chunk"""


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
    sketches: Buffer
    """fp32, chunk after chunk: its sketch, distance and step, each by the root of its size (`Sample`)"""


@dataclass(frozen=True, slots=True)
class ChunkCompared:
    """The sketch of one chunk of the anchor beside a witness's. RMS per parameter, NaN while unknown."""

    off: float
    """the distance of the two chunks, as their sketches estimate it"""
    scale: float
    """of the anchor's chunk"""
    distance: float
    """the witness's usual distance to other anchors"""
    step: float
    """the longest recent movement of the witness's chunk in one round"""


@dataclass(frozen=True, slots=True)
class Compared:
    """RMS per parameter; NaN if there was nothing to compare."""

    distance: float
    """of the payload's values and the anchor's"""
    scale: float
    """of the payload's values"""
    chunks: tuple[ChunkCompared, ...] = ()


@dataclass(frozen=True, slots=True)
class Freeze(Job[Frozen]):
    """Copy one chunk of the anchor, with its hash. Parameters are bfloat16; buffers are exact."""

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

    reason: Reason
    """if it is APART, the operator decides about the checkpoint"""


@dataclass(frozen=True, slots=True)
class Sample(Job[Sampled]):
    """Copy RUN parameters of the anchor from each start on, fewer where the model ends. Sketch every chunk.

    The sketch of a chunk is SUMS sums of every SUMS-th value, with signs that follow from `starts`. Two sketches are
    about as far apart as the chunks. Nobody can hide a change without these signs (Alon, Matias, Szegedy 1996).
    """

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compare(Job[Compared | None]):
    """Measure the distance between the values of `payload` and the anchor; None if the payload is malformed."""

    runs: tuple[tuple[int, int, int], ...]
    """(place in the payload, first parameter, length) of each run to compare"""
    size: int
    """values that the payload has to hold"""
    payload: Buffer
    starts: tuple[int, ...] = ()
    """as of the Sample"""
    chunks: tuple[int, ...] = ()
    """chunks whose sketches are compared"""
    sketches: Buffer = b""
    """as of `Sampled`; b"" for none"""
