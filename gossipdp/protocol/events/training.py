"""Events for the training process: the model, its sessions, rounds and pace."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event

__all__ = [
    "CheckpointAhead",
    "Pace",
    "RoundDone",
    "RoundSettled",
    "SessionOpened",
    "SessionRefused",
    "SlotSealed",
    "SnapshotTaken",
    "StateReady",
    "StateRenewed",
    "TookOver",
]


@dataclass(frozen=True, slots=True)
class StateReady(Event):
    """This peer holds a model."""

    origin: str
    """founded, received, restored, or taken over (from a live training process)"""
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


@dataclass(frozen=True, slots=True)
class TookOver(Event):
    """The model of a live training process became this peer's."""

    clock: int
    steps: int
    """steps that no snapshot held"""
    before: int | None
    """clock of the model here, or of the newest checkpoint; None without either"""


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
    refused: str = ""
    """"", nan, or session (of an older session, or not awaited)"""


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
