"""What happened, as the application should know it: metrics, logs and the training link are fed by these alone."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.wire.messages import Member, State


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class MemberChanged(Event):
    """`before` is None for a member seen for the first time."""

    member: Member
    before: State | None


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The first other member has answered."""

    through: bytes


@dataclass(frozen=True, slots=True)
class StateReady(Event):
    """This peer holds a model. origin: founded, received, restored, or taken over from a live training process."""

    origin: str
    clock: int


@dataclass(frozen=True, slots=True)
class CheckpointAhead(Event):
    """This peer has fetched the network's model as it was at step `network` of the network's clock. Its own newest
    checkpoint, of `rounds` rounds, is later. The driver keeps that for the operator to decide (GD-605). Comes before
    StateReady."""

    clock: int
    rounds: int
    network: int


@dataclass(frozen=True, slots=True)
class SessionOpened(Event):
    """The training process may load x from shared memory and step; its submits carry `session`.

    kept: the model is what the process had written there, and it does not load x.
    """

    session: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class TookOver(Event):
    """The model is a live training process's, at `clock`, with `steps` that no snapshot held. It was at `before`: the
    clock of the model here, or of the newest checkpoint; None if there was neither."""

    clock: int
    steps: int
    before: int | None


@dataclass(frozen=True, slots=True)
class StateRenewed(Event):
    """The model that the training process goes on with is another's: so is what it does not exchange (`carrying`)."""


@dataclass(frozen=True, slots=True)
class SessionRefused(Event):
    """code: GD-301 (schema differs), GD-303 (what is excluded differs), GD-402 (the model has NaN or Inf)."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pace(Event):
    """Submit every so many steps from now on."""

    every: int


@dataclass(frozen=True, slots=True)
class SlotSealed(Event):
    """The training process should apply `slot` on these chunks."""

    slot: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Event):
    """The snapshot area is free again. refused: "", nan, or session (an older one's, or not awaited)."""

    snapshot: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class RoundDone(Event):
    """One outer step. Norms are RMS per parameter."""

    round: int
    clock: int
    pseudo_gradient: float
    movement: float
    lr: float
    momentum: float


@dataclass(frozen=True, slots=True)
class ExchangeStarted(Event):
    partner: bytes
    exchange: int
    initiator: bool
    codec: str


@dataclass(frozen=True, slots=True)
class ExchangeEnded(Event):
    """result: done, cut (ended early at a chunk boundary), slow (the same, for its chunks took far longer than usual),
    lost (the partner went silent).

    distance: RMS of a_i - a_j per parameter over the mixed chunks. duration in seconds. Bytes are whole frames.
    """

    partner: bytes
    exchange: int
    initiator: bool
    result: str
    codec: str
    chunks: int
    of: int
    distance: float
    clipped: int
    blocks: int
    escalated: int
    escalation_bytes: int
    sent: int
    received: int
    duration: float


@dataclass(frozen=True, slots=True)
class OfferRefused(Event):
    partner: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ChunksInDoubt(Event):
    """The partner died before it said whether it had mixed these chunks: counted, never guessed."""

    partner: bytes
    count: int


@dataclass(frozen=True, slots=True)
class UpdateRefused(Event):
    """A peer's payload was refused before a byte reached the anchor. reason: payload, nan, share, hash,
    manifest, schema, implausible."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """Undecodable or out-of-protocol bytes from a verified peer."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Struck(Event):
    """A proven fault of `peer` counts against it, the latest of so many `strikes` (`conduct`). reason: that of the
    update refused, or garbled. pause: seconds for which it is set aside; 0 if it is not."""

    peer: bytes
    reason: str
    strikes: int
    pause: float


@dataclass(frozen=True, slots=True)
class TransferProgress(Event):
    source: bytes
    chunks: int
    of: int


@dataclass(frozen=True, slots=True)
class MomentsProgress(Event):
    """So many chunks of the optimizer's moments are here."""

    source: bytes
    chunks: int
    of: int


@dataclass(frozen=True, slots=True)
class RoundSettled(Event):
    """With mode "sync": the exchanges of the round that `snapshot` ended are over, and their corrections handed out."""

    snapshot: int


@dataclass(frozen=True, slots=True)
class StateJudged(Event):
    """A witness has compared what `source` gave with its own anchor. witness b"": nobody could, and it was taken.

    distance, bound: RMS per parameter; `plausible` if the one is within the other.
    """

    source: bytes
    witness: bytes
    plausible: bool
    distance: float
    bound: float


@dataclass(frozen=True, slots=True)
class ResyncBegan(Event):
    """This peer gives up its own state for the network's. reason: apart (`members` of its side have met `others` who
    trained without them for long), lag (it has fallen behind), diverged (its state is not what others have agreed on),
    idle (it has no training process) or late (a training process waits). behind: steps of the network's clock."""

    reason: str
    members: int
    others: int
    behind: int = 0


@dataclass(frozen=True, slots=True)
class ResyncEnded(Event):
    """`complete`: this peer holds what `source` has; else there was nobody left to fetch it from, and it holds its own
    again. seconds."""

    reason: str
    source: bytes
    complete: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class DataKnown(Event):
    """This peer knows what others have read of a data set, or that nobody is there to ask: it gives leases now."""

    data: bytes


@dataclass(frozen=True, slots=True)
class DataCovered(Event):
    """How far the network has come with a data set; now and then while it goes on. Counts of blocks.

    finished, blocks: in `epoch`, the first that is not covered. open: leases of this peer. duplicates: blocks it has
    finished and that another was known to have finished before, since its start.
    """

    name: str
    epoch: int
    finished: int
    blocks: int
    readers: int
    open: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Left(Event):
    """This peer has said goodbye; the driver may stop."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something an operator should read. code: a GD-nnn."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class IncrementPublished(Event):
    """This peer's progress is on its way to everybody: so many bytes, with the share `weight` (p). `share`: of the
    residual, what the compressor was offered, the least of all chunks."""

    size: int
    weight: float
    share: float


@dataclass(frozen=True, slots=True)
class IncrementApplied(Event):
    """Another's increment is in the anchor: `movement` is how far it moved, RMS per parameter; with a robust rule, how
    far it would have by itself, and it was judged."""

    origin: bytes
    size: int
    weight: float
    hops: int
    movement: float
    compressor: str
    """how it travelled"""
    scale: float = 1.0
    """below 1: it was longer than others were, and was cut to this share, by all alike"""


@dataclass(frozen=True, slots=True)
class EpochSettled(Event):
    """The set of `epoch` will never change here."""

    epoch: int
    digest: bytes
    rumours: int
    samples: int


@dataclass(frozen=True, slots=True)
class EpochJudged(Event):
    """What a robust rule has made of an epoch's increments is in the anchor: of so many `contributors` it has looked at
    `counted`, and `movement` is how far that has moved, RMS per parameter."""

    epoch: int
    contributors: int
    counted: int
    movement: float


@dataclass(frozen=True, slots=True)
class EpochDiverged(Event):
    """`agree` peers, this one included, have settled `epoch` as this one has, but `differ` others upon one other set:
    this peer's state is not theirs, and is to be fetched anew."""

    epoch: int
    agree: int
    differ: int
    holders: tuple[bytes, ...] = ()
    """those others, as far as it knows them"""


@dataclass(frozen=True, slots=True)
class EpochFingerprinted(Event):
    """`fingerprint` is of this peer's anchor with all up to `epoch` inside, which has settled, and nothing else: the
    same number at every peer that has settled it alike, if replicas are what they should be."""

    epoch: int
    fingerprint: int
