"""What a LinkServer tells the daemon of its training process. Plain data; nothing here may act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Attached", "Detached", "LinkEvent", "ModelWritten", "RankLost", "Reported", "SlotApplied", "Submitted"]


@dataclass(frozen=True, slots=True)
class Attached:
    """A training process is there, and its region is. `schema` is canonical and has been checked."""

    schema: bytes
    world: int
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ModelWritten:
    """region.x holds the training process's own model; it waits for a Session."""


@dataclass(frozen=True, slots=True)
class Submitted:
    session: int
    snapshot: int
    applied: int
    steps: int
    samples: int
    loss: float


@dataclass(frozen=True, slots=True)
class SlotApplied:
    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class Reported:
    session: int
    loss: float
    stall_seconds: float
    lost_steps: int = 0


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank of a group has died, the first to do so; the group is given up, and Detached follows."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Detached:
    """The training process died or left. A snapshot it submitted before is whole and stays mapped while in use."""

    reason: str


LinkEvent: TypeAlias = Attached | ModelWritten | Submitted | SlotApplied | Reported | RankLost | Detached
