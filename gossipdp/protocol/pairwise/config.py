"""Settings of averaging."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.pairwise.timetable import EARLY, LATE

__all__ = ["AveragingConfig"]


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    fineness: Mapping[str, int]
    """the codecs this peer speaks; of two wishes the finer one holds"""
    codec: str = "modulo"
    bits: int = 3
    """of the modulo codec; first rounds use 8, a joiner's first exchange 16"""
    weight: float = 0.5
    """gamma: a_i += gamma k delta"""
    kappa: float = 0.3
    """share of the mixing that momentum sees, while momentum is not 0"""
    rate: float = math.inf
    """bytes a second of one exchange, each way; both peers keep to the lower of their rates"""
    window: int = 8
    """chunks open at once"""
    early_exchanges: int = EARLY
    """exchanges of an early round, at most"""
    late_exchanges: int = LATE
    """exchanges of a later round, at most"""
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    deadlines: Deadlines = field(default_factory=Deadlines)
