"""What happened, for the application: metrics, logs and the training link are fed by these events alone."""

from gossipdp.protocol.events.base import Event, Notice
from gossipdp.protocol.events.data import DataCovered, DataKnown
from gossipdp.protocol.events.exchange import ChunksInDoubt, ExchangeEnded, ExchangeStarted, OfferRefused
from gossipdp.protocol.events.finish import Closeness, FinishBegan, Finished, FinishPhase
from gossipdp.protocol.events.increments import (
    EpochDiverged,
    EpochFingerprinted,
    EpochJudged,
    EpochSettled,
    IncrementApplied,
    IncrementPublished,
)
from gossipdp.protocol.events.members import (
    Decided,
    Joined,
    Left,
    MemberChanged,
    MessageDropped,
    OperatorDiffers,
    Struck,
    UpdateRefused,
)
from gossipdp.protocol.events.training import (
    CheckpointAhead,
    Pace,
    RoundDone,
    RoundSettled,
    SessionOpened,
    SessionRefused,
    SlotSealed,
    SnapshotTaken,
    StateReady,
    StateRenewed,
    TookOver,
)
from gossipdp.protocol.events.transfer import MomentsProgress, ResyncBegan, ResyncEnded, StateJudged, TransferProgress

__all__ = [
    "CheckpointAhead",
    "ChunksInDoubt",
    "Closeness",
    "DataCovered",
    "DataKnown",
    "Decided",
    "EpochDiverged",
    "EpochFingerprinted",
    "EpochJudged",
    "EpochSettled",
    "Event",
    "ExchangeEnded",
    "ExchangeStarted",
    "FinishBegan",
    "FinishPhase",
    "Finished",
    "IncrementApplied",
    "IncrementPublished",
    "Joined",
    "Left",
    "MemberChanged",
    "MessageDropped",
    "MomentsProgress",
    "Notice",
    "OfferRefused",
    "OperatorDiffers",
    "Pace",
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
]
