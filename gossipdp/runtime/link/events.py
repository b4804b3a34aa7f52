"""Events of a LinkServer about its training process. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "Attached",
    "Detached",
    "LinkEvent",
    "ModelWritten",
    "MomentsWanted",
    "MomentsWritten",
    "RankLost",
    "Reported",
    "SlotApplied",
    "Submitted",
    "Told",
    "TurnedAway",
]


@dataclass(frozen=True, slots=True)
class Attached:
    """A training process has attached, and its region is ready. `schema` is canonical and was checked."""

    schema: bytes
    world: int
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ModelWritten:
    """Buffer 0 holds the training process's own model, and the process waits for a Session.

    empty: its optimizer has made no step and can use moments. The other fields are of a process that had a session of
    this `run` before; see `Ready`.
    """

    empty: bool = False
    run: bytes = b""
    clock: int = 0
    steps: int = 0
    samples: int = 0
    carried: Carried = NOTHING
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class MomentsWritten:
    """Buffer `applied` % 2 holds an optimizer's moments after `steps` steps. The process waits for MomentsTaken."""

    session: int
    number: int
    steps: int
    applied: int = 0


@dataclass(frozen=True, slots=True)
class MomentsWanted:
    """Buffer 0 is free for the moments; the training process waits for MomentsGiven."""

    session: int


@dataclass(frozen=True, slots=True)
class Submitted:
    session: int
    snapshot: int
    applied: int
    steps: int
    samples: int
    loss: float
    state: Buffer | None = None
    """tensors that are not exchanged, if they have changed"""
    eval_loss: float = math.nan


@dataclass(frozen=True, slots=True)
class SlotApplied:
    """`slot` is in the live parameters. Slot 0 is the model that the session began with."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class Reported:
    session: int
    loss: float
    stall_seconds: float
    lost_steps: int = 0
    uncounted: bool = False
    """parameters change and no step is counted"""
    eval_loss: float = math.nan
    unpinned: int = 0
    """bytes of the shared memory that CUDA has refused to pin"""


@dataclass(frozen=True, slots=True)
class RankLost:
    """The first rank of a group has died. The group is given up, and Detached follows."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A second training process, `pid`, was refused: `attached` is attached, and lives."""

    pid: int
    attached: int


@dataclass(frozen=True, slots=True)
class Told:
    """A training process tells an error of gossipdp; fields as of `Reason`."""

    code: str
    text: str
    exit: int = 0
    alone: bool = False
    lost_steps: int = 0


@dataclass(frozen=True, slots=True)
class Detached:
    """The training process died or left. A snapshot that it submitted before is whole and stays mapped while used."""

    reason: str
    left: bool = False
    """it said Farewell: it may live on, as a script that evaluates after its training"""


LinkEvent: TypeAlias = (
    Attached
    | ModelWritten
    | Submitted
    | SlotApplied
    | Reported
    | RankLost
    | Told
    | TurnedAway
    | Detached
    | MomentsWritten
    | MomentsWanted
)
