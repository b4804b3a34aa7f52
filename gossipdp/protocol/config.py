"""What one peer is told at its start: the settings of its machines, and its own.

Values and their meaning alone; what follows from them is the machines' business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gossipdp.protocol.epidemic.epidemic import SpreadingConfig
from gossipdp.protocol.membership.membership import MembershipConfig
from gossipdp.protocol.pairwise.averaging import AveragingConfig
from gossipdp.protocol.schema import MOST, MOST_EXACT
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.transfer.source import TransferConfig

__all__ = ["PeerConfig"]


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    membership: MembershipConfig
    averaging: AveragingConfig
    transfer: TransferConfig = field(default_factory=TransferConfig)
    spreading: SpreadingConfig = field(default_factory=SpreadingConfig)
    """of epidemic"""
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    algorithm: Literal["pairwise", "epidemic"] = "pairwise"
    every: int = 50
    """H, inner steps a round, after the warm start, of a peer as fast as most (`speed`)"""
    codec: str = "modulo"
    bits: int = 4
    """of the modulo codec; first rounds use 8, a joiner's first exchange 16"""
    lr: float = 0.7
    """alpha"""
    momentum: float = 0.7
    """mu"""
    kappa: float = 0.3
    """share of the mixing that momentum sees, while it is not 0"""
    warmup_steps: int = 200
    """steps of the network's clock with short rounds, lr 1 and momentum 0"""
    early_steps: int = 1000
    """steps of the network's clock with several exchanges a round, while the learning rate is high"""
    early_exchanges: int = 3
    """at most so many (`phases`)"""
    moments: bool = False
    """keep the inner optimizer's moments, for this host's next training process and for joiners; fetch them as one"""
    sync: bool = False
    """training waits for the exchanges of each round"""
    resume_after: float = 30.0
    """seconds a restarted peer looks for the network before it goes on from its own checkpoint, unless all it remembers
    are there before"""
    apart_rounds: int = 10
    """own rounds after which a member that was lost, and trained on without this peer, is no more averaged with: the
    smaller side fetches the model of the larger"""
    leave_within: float = 5.0
    """seconds for the exchange under way to end before the goodbye is said anyhow"""

    @property
    def most_chunk(self) -> int:
        """Parameters a chunk, at the most."""
        return MOST if self.algorithm == "pairwise" else MOST_EXACT
