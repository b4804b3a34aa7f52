"""A peer that gives up its model for another one: what it remembers until that has come, or it gives up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gossipdp.protocol.course.reasons import Reason

__all__ = ["WANTED", "Replacement"]

DRY: Final = {Reason.APART: 32, Reason.LAG: 4, Reason.IDLE: 4, Reason.LATE: 4}
"""Periods without any source after which the peer gives up. A peer that lags can be averaged as it is. A peer held
apart has to follow some day, so it waits longer."""
WANTED: Final = 4
"""The same, once another peer asks for the model that is given up: there may be no other model."""
STALLED: Final = {Reason.APART: 128, Reason.LAG: 128, Reason.IDLE: 64, Reason.LATE: 64}
"""Periods with sources that all refuse, after which the peer gives up; times 1 to 2 at random. Two peers may have begun
to follow each other. One of them must stop first."""


@dataclass
class Replacement:
    """One model that replaces another."""

    reason: Reason
    began: float
    """time at which this began"""
    kept: bool
    """the checkpoint of the own model is saved, or not wanted"""
    source: bytes = b""
    """the member that it fetched from last"""
    taken: set[int] = field(default_factory=set)
    """chunks that are replaced"""
    dry_at: float = math.inf
    """when the peer gives up for want of sources"""
    stalled_at: float = math.inf
    """when it gives up for want of progress"""

    def sought(self, candidates: Sequence[bytes], period: float, random: Random, now: float, *, busy: bool) -> None:
        """Any of `candidates` was asked. busy: a model is coming."""
        if busy:
            self.dry_at = self.stalled_at = math.inf
            return
        if candidates:
            self.dry_at = math.inf
        elif math.isinf(self.dry_at):
            self.dry_at = now + DRY[self.reason] * period
        if math.isinf(self.stalled_at):
            self.stalled_at = now + STALLED[self.reason] * period * (1.0 + random.random())

    def wanted(self, period: float, now: float) -> None:
        """Another peer asks for the model that is given up, and gets none of it."""
        if not math.isinf(self.dry_at):
            self.dry_at = min(self.dry_at, now + WANTED * period)

    @property
    def over_at(self) -> float:
        """When the peer gives up, unless a model is coming."""
        return min(self.dry_at, self.stalled_at)
