"""What happened, for the application. These events alone feed metrics, logs and the training link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossipdp.protocol.causes import Fault, Objection, Outcome, Unused
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.schema import Mismatch
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.protocol.wire.messages import Decision, Member, Phase, Receipt, State

__all__ = [
    "CheckpointAhead",
    "ChunksInDoubt",
    "Closeness",
    "DataCovered",
    "DataKnown",
    "Decided",
    "Event",
    "ExchangeEnded",
    "ExchangeStarted",
    "FinishBegan",
    "FinishPhase",
    "Finished",
    "Joined",
    "Left",
    "MemberChanged",
    "MessageDropped",
    "MessageFailed",
    "MomentsProgress",
    "Notice",
    "OfferRefused",
    "OperatorDiffers",
    "OverBudget",
    "Pace",
    "RanAway",
    "ReceiptsTaken",
    "RelaysChosen",
    "ResyncBegan",
    "ResyncEnded",
    "RoundDone",
    "RoundSettled",
    "SessionOpened",
    "SessionRefused",
    "SlotSealed",
    "SnapshotTaken",
    "StateJudged",
    "StateReady",
    "StateRenewed",
    "Struck",
    "TookOver",
    "TransferProgress",
    "UpdateRefused",
    "WeightsLoaded",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A text that the operator should read."""

    code: str
    """GD-nnn"""
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


# -- members -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberChanged(Event):
    """The record of a member changed its state, incarnation, address or phase."""

    member: Member
    before: State | None
    """None for a member that was not known"""


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The first other member has answered."""

    through: bytes
    """its id"""


@dataclass(frozen=True, slots=True)
class RelaysChosen(Event):
    """These members are to carry to this peer what others send it, and no others. `Peer.carried` takes the answers."""

    relays: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Left(Event):
    """This peer has told members that it leaves. The driver may stop."""


@dataclass(frozen=True, slots=True)
class UpdateRefused(Event):
    """Data of a peer was refused before a byte of it reached the anchor."""

    peer: bytes
    reason: Fault


@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """A verified peer sent undecodable or out-of-protocol bytes."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class OverBudget(Event):
    """A message of `peer` costs more than its budget holds (`budgets`). It was dropped, or a part of it."""

    peer: bytes
    kind: str
    """name of the message's type"""


@dataclass(frozen=True, slots=True)
class MessageFailed(Event):
    """A message of `peer` met a fault of this peer's own code. The exchange and the transfers with `peer` are over."""

    peer: bytes
    kind: str
    """name of the message's type"""
    fault: str
    """the exception and where it was raised"""


@dataclass(frozen=True, slots=True)
class Struck(Event):
    """A proven fault of `peer` counts against it (`strikes`)."""

    peer: bytes
    reason: Fault
    strikes: int
    """strikes of the peer that have not expired, this one included"""
    pause: float
    """seconds for which it is set aside; 0 if it is not"""


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """Decisions of the network's operator stand from now on."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class ReceiptsTaken(Event):
    """Peers have what a decision gives them: an invite has let them in, or they hold the network's new secret."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class OperatorDiffers(Event):
    """Members follow the decisions of another operator than this host, which may know none."""

    through: bytes
    """the member that said so"""
    operator: bytes
    """public key"""


# -- exchanges -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExchangeStarted(Event):
    """An exchange with `partner` began."""

    partner: bytes
    exchange: int
    initiator: bool
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeEnded(Event):
    """An exchange ended. Bytes count whole frames."""

    partner: bytes
    exchange: int
    initiator: bool
    result: Outcome
    codec: str
    chunks: int
    of: int
    distance: float
    """RMS of a_i - a_j per parameter, over the mixed chunks; NaN if a grid was too coarse to show it"""
    clipped: int
    blocks: int
    escalated: int
    escalation_bytes: int
    sent: int
    received: int
    duration: float
    """seconds"""


@dataclass(frozen=True, slots=True)
class OfferRefused(Event):
    """A member refused the offer of an exchange."""

    partner: bytes
    reason: Objection | str
    """a word of another version may be no `Objection`"""


@dataclass(frozen=True, slots=True)
class ChunksInDoubt(Event):
    """The partner died before it said whether it had mixed these chunks. They are counted, and never guessed."""

    partner: bytes
    count: int


# -- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateReady(Event):
    """This peer holds a model."""

    origin: Origin
    clock: int


@dataclass(frozen=True, slots=True)
class CheckpointAhead(Event):
    """This peer has fetched a model that is older than its own newest checkpoint. Comes before StateReady.

    The driver keeps the checkpoint, and the operator decides about it (GD-605).
    """

    clock: int
    """of the checkpoint, in steps"""
    rounds: int
    """of the checkpoint"""
    network: int
    """step of the network's clock at which the fetched model was current"""


@dataclass(frozen=True, slots=True)
class SessionOpened(Event):
    """The training process may load x from shared memory and train. Its submits carry `session`."""

    session: int
    kept: bool = False
    """the model is what the process wrote there, so it does not load x"""
    apart: float = 0.0
    """distance of what the process wrote there from x, relative to x; over parameters"""


@dataclass(frozen=True, slots=True)
class TookOver(Event):
    """The model of a live training process became this peer's."""

    clock: int
    steps: int
    """steps that no snapshot held"""
    before: int | None
    """clock of the model here, or of the newest checkpoint; None without either"""


@dataclass(frozen=True, slots=True)
class WeightsLoaded(Event):
    """The script has loaded weights into a training process that had a session."""

    kept: bool
    """they are this peer's model now; else the network's was put back, because other peers train"""


@dataclass(frozen=True, slots=True)
class RanAway(Event):
    """Training ran away, so this peer steps as if alone; or that is over."""

    active: bool
    again: bool = False
    """it had done so before, not long ago. Bare optimizers may leap once, such as Adam near an optimum"""


@dataclass(frozen=True, slots=True)
class StateRenewed(Event):
    """The training process goes on with another peer's model, and with its state that is not exchanged
    (`carried_state`)."""


@dataclass(frozen=True, slots=True)
class SessionRefused(Event):
    """The training process cannot take part."""

    code: str
    """GD-301 (the schema differs), GD-303 (other tensors are excluded), GD-402 (the model has NaN or Inf)"""
    reason: str
    mismatch: Mismatch = Mismatch.NONE
    """of GD-301"""


@dataclass(frozen=True, slots=True)
class Pace(Event):
    """The training process submits every `every` steps from now on."""

    every: int


@dataclass(frozen=True, slots=True)
class SlotSealed(Event):
    """The training process should apply `slot` on these chunks."""

    slot: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Event):
    """The snapshot area is free again."""

    snapshot: int
    refused: Unused | None = None


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
class RoundSettled(Event):
    """With mode "sync": the exchanges of the round are over, and the training process has their corrections."""

    snapshot: int
    """the snapshot that ended the round"""


# -- transfers -----------------------------------------------------------------------------------------------------


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

    reason: Reason
    members: int
    """of its side, if the reason is APART"""
    others: int
    """members that trained without them"""
    behind: int = 0
    """steps of the network's clock"""


@dataclass(frozen=True, slots=True)
class ResyncEnded(Event):
    """The fetch is over."""

    reason: Reason
    source: bytes
    complete: bool
    """this peer holds the model of `source`; False: no source was left, and it holds its own again"""
    seconds: float


# -- data ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataKnown(Event):
    """This peer knows what other members have read of a data set, or that there is none to ask. It gives leases now."""

    data: bytes
    """digest of the data set"""


@dataclass(frozen=True, slots=True)
class DataCovered(Event):
    """Progress of the network with a data set, told now and then. Counts of blocks."""

    name: str
    epoch: int
    """the first epoch that is not finished"""
    finished: int
    """in `epoch`"""
    blocks: int
    """of an epoch"""
    readers: int
    """members that train on it"""
    open: int
    """leases of this peer"""
    duplicates: int
    """blocks finished by this peer, since its start, that another member was known to have finished before"""


# -- the end of a run ----------------------------------------------------------------------------------------------


class Closeness(NamedTuple):
    """How close the states of peers are whose training is over. Distances are RMS per parameter; NaN: unknown."""

    over: bool
    """this peer seeks no more exchanges of its own, because it `agrees` or does not come closer"""
    agrees: bool
    """it holds the mean of all"""
    before: float
    """usual distance of two states at the end of the training"""
    now: float
    """distance that was measured last"""
    exchanges: int
    """made since the training ended"""
    outliers: tuple[bytes, ...] = ()
    """members whose state was too far away to be averaged with this peer's"""


@dataclass(frozen=True, slots=True)
class FinishBegan(Event):
    """The run of this peer ends. The driver ends its training process after one more snapshot."""

    by: bytes
    """the member that asked for it; b"" for this host"""
    calls: bool
    """all members are asked to finish"""


@dataclass(frozen=True, slots=True)
class FinishPhase(Event):
    """The end of this peer's run has come to `phase`."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """This peer's run is over, with the final model as far as there is one. The driver saves it and leaves."""

    closers: tuple[bytes, ...]
    """members that came together, this peer included; empty if it has no model"""
    closeness: Closeness
    without: tuple[bytes, ...] = ()
    """members that trained, and whose last steps are not in this model as far as this peer knows"""
    handed_in: tuple[bytes, ...] = ()
    """members that do not hold this model, and had handed their last steps in"""
    early: bool = False
    """other members have trained on without this peer, so its model is not final"""
