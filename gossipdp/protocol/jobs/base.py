"""The base of all jobs, and the name of an open chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

__all__ = ["ChunkKey", "Job"]

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
