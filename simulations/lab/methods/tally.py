"""Counts of the exchanges of one run, which its answer keeps."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.jobs import Turn

__all__ = ["Tally"]


@dataclass
class Tally:
    """Counts of a run's exchanges."""

    exchanges: int = 0
    failed: int = 0
    cut: int = 0
    """ended before the last chunk, because their round was over"""
    chunks: int = 0
    clipped: int = 0
    blocks: int = 0
    escalated: int = 0
    landing: float = 0.0
    """sum over the exchanges of their duration, in rounds"""

    def count_failed(self, exchanges: int = 1) -> None:
        self.failed += exchanges

    def count_cut(self) -> None:
        self.cut += 1

    def count_turn(self, turn: Turn) -> None:
        """Count one chunk of an exchange of two."""
        self.chunks += turn.mixed
        self.clipped += turn.share < 1.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated

    def count_chunk(self, blocks: int, escalated: int) -> None:
        """Count one chunk of a group's exchange."""
        self.chunks += 1
        self.blocks += blocks
        self.escalated += escalated

    def count_landed(self, rounds: float) -> None:
        """Count one finished exchange that lasted `rounds` rounds."""
        self.exchanges += 1
        self.landing += rounds
