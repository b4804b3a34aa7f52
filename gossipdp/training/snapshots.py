"""Numbers and times of this process's snapshots: when the next is due, and how long mode sync waits for a round."""

from __future__ import annotations

from typing import Final

__all__ = ["SUBMIT_WITHIN", "SnapshotTimes"]

SUBMIT_WITHIN: Final = 600.0
"""seconds after which a snapshot is due, however few steps it holds"""


class SnapshotTimes:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.number = 0
        """number of the last snapshot that was handed over"""
        self._settled = 0
        """number of the last snapshot whose round is over"""
        self._submitted_at = 0.0
        self._deadline = 0.0
        """seconds that mode sync waits for a round"""

    def terms(self, deadline: float) -> None:
        """The daemon offers a session with this deadline for a round, in seconds."""
        self._deadline = deadline

    def begin(self, now: float) -> None:
        """A session begins."""
        self._submitted_at = now

    def submitted(self, number: int, now: float) -> None:
        """Snapshot `number` was handed over."""
        self.number, self._submitted_at = number, now

    def settled(self, number: int) -> None:
        """The round of snapshot `number` is over."""
        self._settled = max(self._settled, number)

    def settle_all(self) -> None:
        """The daemon is gone: no round of it is waited for."""
        self._settled = self.number

    def overdue(self, now: float) -> bool:
        """True if the last snapshot is older than `SUBMIT_WITHIN`."""
        return now - self._submitted_at >= SUBMIT_WITHIN

    def patience(self, now: float) -> float:
        """Seconds that mode sync still waits for the round of the last snapshot."""
        return 0.0 if self._settled >= self.number else max(0.0, self._submitted_at + self._deadline - now)
