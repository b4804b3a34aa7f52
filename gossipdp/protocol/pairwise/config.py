"""Settings of averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig

__all__ = ["AveragingConfig"]


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    fineness: Mapping[str, int]
    """the codecs this peer speaks; of two wishes the finer one holds"""
    codec: str
    bits: int
    """of the modulo codec; first rounds use 8, a joiner's first exchange 16"""
    weight: float
    """gamma: a_i += gamma k delta"""
    kappa: float
    """share of the mixing that momentum sees, while momentum is not 0"""
    rate: float
    """bytes a second of one exchange, each way; both peers keep to the lower of their rates"""
    window: int
    """chunks open at once"""
    early_exchanges: int
    """exchanges of an early round, at most"""
    late_exchanges: int
    """exchanges of a later round, at most"""
    schedule: str
    """the partners while the view is full and fresh (`schedule`): "hypercube" in early rounds, if N is a power of two;
    "base2" in all rounds; "" for random ones"""
    matching: MatchingConfig
    deadlines: Deadlines
