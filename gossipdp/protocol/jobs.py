"""Vector work, described as data: what the protocol asks of the thread that owns the vectors.

The protocol never touches a vector. It asks for a job on one chunk (50 ms at most) and hears the result through
`Peer.job_done`; jobs run one at a time in the order asked, so that nothing needs a lock. An `Algorithm`
(gossipdp.algorithms) executes them; a driver carries them there and back. Buffers in jobs and results are opaque here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from gossipdp.protocol.wire.encoding import Buffer


class ChunkKey(NamedTuple):
    """One chunk of one exchange, unique in the network for ever."""

    initiator: bytes
    exchange: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Job:
    """Base of all jobs."""


# -- the ledger: a, v, pending and the training process's x ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allocate(Job):
    """The model's size is known: make room. Always the first job. Result: None.

    `size` and `trainable` count parameters; from `trainable` on plain averages stand (lr 1, momentum 0).
    """

    size: int
    trainable: int
    chunk_parameters: int


@dataclass(frozen=True, slots=True)
class Restore(Job):
    """Load the newest checkpoint of this host, if there is one. The driver does it. Result: Restored or None."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What the checkpoint says of itself. `schema` is the schema's canonical bytes; the rest as `carrying` has it."""

    schema: bytes
    clock: int
    rounds: int
    reference: Buffer = b""
    state: Buffer = b""


@dataclass(frozen=True, slots=True)
class Bind(Job):
    """Use the newest training process's shared vectors for x and the slots. The driver does it. Result: None."""


@dataclass(frozen=True, slots=True)
class Unbind(Job):
    """No training process any more. The driver does it. Result: None."""


@dataclass(frozen=True, slots=True)
class Renew(Job):
    """The training process makes no rounds: what partners may move this peer by in a round, they may again. Result:
    None."""


@dataclass(frozen=True, slots=True)
class Found(Job):
    """a_c := x_c: take the training process's model as the network's first. Result: Checked."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Attach(Job):
    """x_c := a_c, both slots of c := 0: a new session starts from the anchor. Result: None."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Check(Job):
    """Is the submitted snapshot finite on this chunk? Result: Checked."""

    chunk: int


@dataclass(frozen=True, slots=True)
class OuterStep(Job):
    """The outer step on one chunk, from the submitted snapshot. Result: Stepped.

    `applied` is the last slot that is inside the snapshot. With momentum 0, v becomes 0. It is `part` of what a usual
    round would have moved, if all its steps went one way.
    """

    chunk: int
    lr: float
    momentum: float
    applied: int
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Seal(Job):
    """Close the open slot for the training process to apply, and open the next. Result: Sealed."""


@dataclass(frozen=True, slots=True)
class Release(Job):
    """The training process has applied this slot: zero it. Result: None."""

    slot: int


@dataclass(frozen=True, slots=True)
class Checked:
    finite: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """Squared norms on one chunk: of the pseudo-gradient D, and of the anchor's own movement m."""

    pseudo_gradient2: float
    movement2: float


@dataclass(frozen=True, slots=True)
class Sealed:
    """`chunks` lists the dirty chunks of `slot`; when none is dirty nothing was sealed."""

    slot: int
    chunks: tuple[int, ...]


# -- the exchange ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin(Job):
    """The initiator opens a chunk. Result: Turn with [ranges]."""

    key: ChunkKey
    codec: str
    lower: bool
    """this peer's id is the lower of the two"""


@dataclass(frozen=True, slots=True)
class Answer(Job):
    """The responder opens a chunk knowing the initiator's ranges. Result: Turn with [ranges, *codes]."""

    key: ChunkKey
    codec: str
    lower: bool
    ranges: Buffer


@dataclass(frozen=True, slots=True)
class Decode(Job):
    """The initiator takes a turn in. `first`: buffers start with the responder's ranges. Result: Turn."""

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    first: bool


@dataclass(frozen=True, slots=True)
class DecodeAndMix(Job):
    """The responder takes a turn in, and mixes at once if every block has passed its check. Result: Turn.

    `bound` is the initiator's tau; `weight` is gamma; v moves by -pull times what a moves by (kappa / alpha).
    """

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    bound: float
    weight: float
    pull: float


@dataclass(frozen=True, slots=True)
class Mix(Job):
    """The initiator mixes with the share the responder used, after taking in its last buffers. Result: Turn."""

    key: ChunkKey
    buffers: tuple[Buffer, ...]
    share: float
    weight: float
    pull: float


@dataclass(frozen=True, slots=True)
class Drop(Job):
    """Forget the open chunks `keys`; what was not mixed is not. Result: None."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a turn of a chunk.

    buffers: what to send to the partner now (empty: nothing it lacks).
    complete: every block of delta is exact. mixed: delta has been applied with `share`.
    bound: own tau. distance2: ||delta||^2 once complete, 0 of buffers. blocks, escalated,
    escalation_bytes (received past the first stage): counts for the metrics, once complete; of buffers bytes alone.
    refused: "" or why the partner's buffers were refused: payload, nan, share.
    """

    buffers: tuple[Buffer, ...] = ()
    complete: bool = False
    mixed: bool = False
    share: float = 1.0
    bound: float = float("inf")
    distance2: float = 0.0
    blocks: int = 0
    escalated: int = 0
    escalation_bytes: int = 0
    refused: str = ""


# -- state transfer --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Freeze(Job):
    """Copy one chunk of the anchor, with its hash: parameters as bfloat16, buffers and all that is shared exactly.
    Result: Frozen."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Frozen:
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class HashPiece(Job):
    """Hash a piece of what travels beside the vector (`carrying`), as chunk number `chunk`. Result: Frozen."""

    chunk: int
    payload: Buffer


@dataclass(frozen=True, slots=True)
class CheckPiece(Job):
    """Has such a piece, chunk number `chunk`, this hash? Result: Checked (finite False: refused)."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Adopt(Job):
    """a_c := payload if its hash is right and it is finite. Result: Checked (finite False: refused)."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Resync(Job):
    """As Adopt, on a peer that trains: payload - a_c is added to a_c and to pending, so x follows at the next drain.
    Result: Checked (finite False: refused)."""

    chunk: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Conclude(Job):
    """What Resync has added to a_c and pending stays there; or with `back`, for nobody has the rest of it, it is taken
    away again, and only steps taken since remain. Result: None."""

    chunk: int
    back: bool


@dataclass(frozen=True, slots=True)
class CheckMoments(Job):
    """Has `payload` this hash, and is it both moments of `size` parameters? Result: Checked (finite False: refused)."""

    chunk: int
    size: int
    payload: Buffer
    hash: bytes


@dataclass(frozen=True, slots=True)
class Keep(Job):
    """Save a checkpoint, for this peer is about to follow others: reason apart (to be kept until people decide) or lag.
    The driver does it, and may finish it after later jobs. Result: None."""

    reason: str


RUN: Final = 256
"""parameters of one run of a Sample"""


@dataclass(frozen=True, slots=True)
class Sample(Job):
    """Copy RUN parameters of the anchor from each start on, fewer where the model ends. Result: Sampled."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """payload: fp32 values, run after run. distance: of two anchors at the last exchanges of these chunks; step: of the
    anchor in a round, the longest of late; both RMS per parameter, NaN while unknown."""

    payload: Buffer
    distance: float
    step: float


@dataclass(frozen=True, slots=True)
class Compare(Job):
    """How far are the values of `payload` from the anchor? Result: Compared, or None if it is malformed.

    runs: (place in payload, first parameter, length) of what is to be compared; size: values that payload has to hold.
    """

    runs: tuple[tuple[int, int, int], ...]
    size: int
    payload: Buffer


@dataclass(frozen=True, slots=True)
class Compared:
    """distance of the two and scale of the payload's, RMS per parameter; NaN if there was nothing to compare."""

    distance: float
    scale: float


# -- increments that all apply ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish(Job):
    """Put this peer's progress, from the submitted snapshot, into a payload for all. Result: Published.

    compressor: by name. lr is alpha, 0 to 8; beta the share of the residual that is kept; weight is p, above 0, at
    most 1; `applied` the last slot that is inside the snapshot; `bound` the most that one message moves this chunk, of
    the epoch the message belongs to, as in Apply. `lead`: the own payload goes whole, as if this were the only peer and
    alpha 1, into the lead of its anchor, until an ApplyEpoch takes it back; else it is applied like anybody's.
    """

    chunk: int
    compressor: str
    lr: float
    beta: float
    weight: float
    applied: int
    seed: int
    bound: float = float("inf")
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """payload: what all apply; empty if the progress is not finite, and then nothing was changed. movement: what it
    moves an anchor by, as Inspected says. Squared norms on the chunk: of the pseudo-gradient D, of what is in the
    payload, of the residual e after it. share: of e that the compressor was offered; below 1 a guard holds back.
    fingerprint: of what was added to the anchor."""

    payload: Buffer
    movement: float = 0.0
    pseudo_gradient2: float = 0.0
    sent2: float = 0.0
    residual2: float = 0.0
    share: float = 1.0
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class CheckIncrement(Job):
    """Would Apply take this payload? Nothing is changed. Result: Inspected."""

    chunk: int
    compressor: str
    payload: Buffer
    lr: float
    weight: float


@dataclass(frozen=True, slots=True)
class Apply(Job):
    """Another's increment, on its first sight: a -= alpha p c, pending -= alpha p c. Any order of any messages gives
    the same bits, if all apply each once, with the same arguments. Result: Inspected.

    bound: a longer movement is scaled down to it, at every peer alike. back: undo, exactly, what such an Apply has
    done, for nothing of its origin counts any more. kept: share of c that goes back into the residual, e += kept c, at
    its origin alone: of what the bound takes off.
    """

    chunk: int
    compressor: str
    payload: Buffer
    lr: float
    weight: float
    bound: float = float("inf")
    back: bool = False
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Inspected:
    """sound: the payload decodes and lr and weight are allowed; else nothing was applied. movement: ||alpha p c||
    before any bound, the same number at every peer. fingerprint: of what was added to the anchor, modulo 2^64."""

    sound: bool
    movement: float = 0.0
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """What one message of a settled epoch says of one chunk. row: whose it is, of the epoch's contributors. compressor,
    payload, lr, weight: as of Apply. scale: what is left of its movement, less than 1 if it was too long."""

    row: int
    compressor: str
    payload: Buffer
    lr: float
    weight: float
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MeasureEpoch(Job):
    """The first pass of a robust rule over the increments of a settled epoch: how far are the contributors from each
    other, as whole vectors? Chunks in order; chunk 0 forgets the epoch before. Result: Measured.

    weights: of the contributors, p of all their messages together; 0 for who counts nothing. terms: in an order that
    all peers share.
    """

    chunk: int
    weights: tuple[float, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Of each term what Inspected says of an Apply: is it sound, and how far does it move the chunk, unscaled?"""

    sound: tuple[bool, ...]
    movements: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ApplyEpoch(Job):
    """The second pass, all chunks having been measured: a -= R(increments), pending likewise. Result: EpochApplied.

    weights, terms: as of the first pass. rule: by its name. leads: compressor and payload of what this peer has
    published and that is in the lead of its anchor, to be taken out of it, exactly.
    """

    chunk: int
    weights: tuple[float, ...]
    terms: tuple[Term, ...]
    rule: str
    leads: tuple[tuple[str, Buffer], ...] = ()


@dataclass(frozen=True, slots=True)
class EpochApplied:
    """counted: of each contributor whether it was looked at, as it is at every peer or at none. movement: how far the
    rule has moved the chunk. fingerprint: of what it has added to what is shared, modulo 2^64."""

    counted: tuple[bool, ...]
    movement: float
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Digest(Job):
    """The hash of one chunk of a shared anchor, as Freeze gives it: equal hashes, equal chunks. Result: Digested."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Digested:
    hash: bytes


@dataclass(frozen=True, slots=True)
class Fingerprint(Job):
    """A number that equal chunks of a shared anchor have alike, and that adds up: over chunks to that of the state, and
    over increments to what they have changed it by, modulo 2^64. Result: Fingerprinted."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Fingerprinted:
    value: int


OfExchange: TypeAlias = Begin | Answer | Decode | DecodeAndMix | Mix
OfIncrement: TypeAlias = CheckIncrement | Apply | MeasureEpoch | ApplyEpoch | Fingerprint

Result = Any
"""Checked, Stepped, Sealed, Turn, Frozen, Sampled, Compared, Published, Inspected, Measured, EpochApplied, Digested,
Fingerprinted or None, as each job says."""
